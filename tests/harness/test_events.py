"""What ranks left behind: event lines, whole or cut off, and gradients put together by rank."""

import json

import numpy as np
import pytest

from harness.events import Events


def test_torn_lines_end_a_rank_s_events(tmp_path):
    (tmp_path / "events.0.jsonl").write_text('{"event": "start"}\n{"event": "blo')
    found = Events.read(tmp_path)
    assert [event["event"] for event in found.ranks[0]] == ["start"]
    assert found.ended() is None


@pytest.mark.parametrize(
    ("ends", "want"),
    [
        (["ok", "ok"], ("ok", "")),
        (["ok", "crashed"], ("crashed", "crashed 1")),
        (["crashed", "out_of_memory"], ("out_of_memory", "out_of_memory 1")),
        (["ok", None], None),
        (["nonfinite", None], ("nonfinite", "nonfinite 0")),
    ],
)
def test_ranks_are_put_together(tmp_path, ends, want):
    for rank, status in enumerate(ends):
        line = f'{{"event": "end", "status": "{status}", "reason": "{status} {rank}"}}\n' if status else ""
        (tmp_path / f"events.{rank}.jsonl").write_text(line)
    assert Events.read(tmp_path).ended() == want


def test_gradients_are_put_together_by_rank(tmp_path):
    for rank in (0, 1):
        np.save(tmp_path / f"g{rank}.npy", np.full((2, 3), rank, dtype=np.float32))
        event = {
            "event": "check",
            "name": "own",
            "rows": [2 * rank, 2 * rank + 1],
            "gradients": {"rows": f"g{rank}.npy"},
        }
        (tmp_path / f"events.{rank}.jsonl").write_text(json.dumps(event) + "\n")
    rows, values = Events.read(tmp_path).gradients("own")["rows"]
    assert rows.tolist() == [0, 1, 2, 3]
    assert values[:, 0].tolist() == [0, 0, 1, 1]

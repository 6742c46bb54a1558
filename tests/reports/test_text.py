"""How numbers are written."""

from itertools import pairwise

import pytest

from reports import text
from reports.plots import spread
from reports.table import prose


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (1.89, "1.89"),
        (39.0, "39.0"),
        (142.4, "142"),
        (1440.0, "1440"),
        (0.0312, "0.0312"),
        (9.996, "10.0"),
        (99.96, "100"),
        (0.9996, "1.00"),
        (0.0, "0"),
    ],
)
def test_three_significant_digits(value, written):
    assert text.significant(value) == written


@pytest.mark.parametrize(
    ("seconds", "written"), [(1.89e-3, "1.89 ms"), (3.12e-5, "0.0312 ms"), (0.142, "142 ms"), (1.4404, "1.44 s")]
)
def test_times(seconds, written):
    assert text.time_text(seconds) == written


@pytest.mark.parametrize(
    ("size", "written"),
    [
        (19e6, "19 MB"),
        (2.95e9, "2.95 GB"),
        (26.2e9, "26.2 GB"),
        (104e9, "104 GB"),
        (3.14e6, "3.1 MB"),
        (9.97e6, "10 MB"),
    ],
)
def test_memory_in_decimal_units(size, written):
    assert text.memory_text(size) == written


def test_rates():
    assert text.rate_text(440.5e9) == "440 G/s"
    assert text.rate_text(1.2e12) == "1.20 T/s"
    assert text.rate_text(7.0) == "7.00 /s"


def test_published_memory_becomes_bytes():
    assert text.memory_bytes_of("2.95 GB") == 2.95e9
    assert text.memory_bytes_of("16.67 GB (46.40 GB)") == pytest.approx(16.67e9)
    assert text.memory_bytes_of("148 MiB above baseline") == 155189248
    assert text.memory_bytes_of("") is text.memory_bytes_of("largest batch in 90% of memory") is None


def test_a_status_is_said_once():
    stopped = {"status": "interrupted", "reason": "interrupted before its turn"}
    assert text.status_text(stopped, with_reason=True) == "interrupted before its turn"
    assert text.status_text(stopped) == "interrupted"
    absent = {"status": "unsupported", "reason": "jax is missing"}
    assert text.status_text(absent, with_reason=True) == "unsupported: jax is missing"


def test_a_cell_has_the_beginning_of_a_long_reason():
    reason = "CUDA out of memory. Tried to allocate 95.81 GiB. GPU 0 has a total capacity of 139.80 GiB of which much."
    row = {"status": "out_of_memory", "expected_status": "", "best_seconds": "", "reason": reason}
    assert text.measured_cell(row, "x") == "out of memory: CUDA out of memory. Tried to allocate 95.81 GiB"
    assert text.measured_cell(row | {"reason": "x" * 200}, "x") == "out of memory: " + "x" * 200, "one sentence"


def test_labels_are_pushed_apart_and_keep_their_order():
    places = spread([0.0, 1.0, 2.0, 100.0], 10, 200)
    assert all(b - a >= 10 - 1e-6 for a, b in pairwise(places))
    assert places[3] == 100.0
    assert max(spread([195.0, 196.0, 197.0], 10, 200)) <= 200


def test_notes_become_html():
    assert prose("`a_b` < c, https://example.org/x/, table 1. See https://example.org.") == (
        '<code>a_b</code> &lt; c, <a href="https://example.org/x/">https://example.org/x/</a>, table 1. '
        'See <a href="https://example.org">https://example.org</a>.'
    )

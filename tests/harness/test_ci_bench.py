"""What the workflow runs, run here on a tiny size: measure, compare with stored rows, write the summary."""

import os
import subprocess
import sys

import yaml

from tests.harness.conftest import ROOT, SHORT


def run(bench, summary, listed="list=false", **settings):
    """`.ci/bench` with probes instead of systems; no compiler, so that nothing is built."""
    tiny = [word for word in SHORT if "maximum_range" not in word]
    places = [f"registry={bench.registry}", f"machine.lock_folder={bench.folder}/lock"]
    environment = os.environ | {
        "PYTHON": sys.executable,
        "VENV": "none",
        "CXX": "no-such-compiler",
        "CUDA_VISIBLE_DEVICES": "",
        "GITHUB_STEP_SUMMARY": str(summary),
        "PEER": "probe:peer",
        "BENCH_ARGS": " ".join([*tiny, "systems=null", "protocol.maximum_range=null", listed, *places]),
        # a machine that is busy must not look slower: only several times the length counts
        "REGRESS_ARGS": "minimum_rounds=2 minimum_effect=1.0 maximum_range=1.0 memory_absolute_bytes=50000000",
        **settings,
    }
    return subprocess.run([ROOT / ".ci" / "bench"], env=environment, capture_output=True, text=True, timeout=300)


def test_the_workflow_s_command_measures_compares_and_fails_on_a_regression(bench, tmp_path):
    """Stored rows; a run in which one of two systems is ten times slower; then that run against itself."""
    summary, out = tmp_path / "summary.md", tmp_path / "out"
    bench.system("probe", {"peer": {"sleep_seconds": 0.05}, "mine": {"sleep_seconds": 0.05}})
    assert bench.run(f"results={tmp_path / 'stored'}").returncode == 0
    bench.system("probe", {"peer": {"sleep_seconds": 0.05}, "mine": {"sleep_seconds": 0.5}})
    slower = run(bench, summary, BASE=str(tmp_path / "stored" / "measured"), OUT=str(out))
    assert slower.returncode != 0
    text = summary.read_text()
    assert "| case | BASE | NEW | change | verdict | memory | remarks |" in text and "probe:mine" in text
    assert "WORSE: 2 cases compared" in text and "**slower**" in text, slower.stdout + slower.stderr
    assert (out / "regress.xml").read_bytes().startswith(b"<?xml")

    (measured,) = out.glob("measured/*/quick/*/rows.csv")
    same = run(bench, summary, BASE=str(measured), OUT=str(out), listed="list=true")
    assert same.returncode == 0, same.stdout + same.stderr
    assert "no regression found: 2 cases compared" in summary.read_text()


def test_the_workflow_runs_that_command_and_nothing_else():
    (workflow,) = (ROOT / ".github" / "workflows").glob("bench.yml")
    steps = yaml.safe_load(workflow.read_text())["jobs"]["quick"]["steps"]
    assert [step["run"] for step in steps if "run" in step] == [".ci/bench"]
    assert os.access(ROOT / ".ci" / "bench", os.X_OK)

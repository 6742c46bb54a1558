"""A results folder to report on: the real published figures, and measured runs made up for tests."""

import shutil
from pathlib import Path

import pytest

from reports import store
from reports.__main__ import main
from reports.measured import shapes
from tests.reports.made_up_results import add_run, quick_rows

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def results(tmp_path):
    """Published figures only."""
    return published_only(tmp_path)


@pytest.fixture
def measured(results):
    """Published figures and one quick run on a CPU."""
    return with_one_run(results)


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    """The report of such a folder, rendered once for all tests of a file."""
    folder = tmp_path_factory.mktemp("rendered")
    results = with_one_run(published_only(folder))
    assert main(["--results", str(results), "--out", str(folder / "out")]) == 0
    return folder / "out"


def published_only(folder):
    for name in ("published", "peers"):
        shutil.copytree(ROOT / "results" / name, folder / "results" / name)
    return folder / "results"


def with_one_run(results):
    add_run(results, "cpu-test-2c", "quick", "20260101T000000Z-aaaa", quick_rows(), {"binary_bytes": 1_500_000})
    return results


@pytest.fixture
def measured_run(measured):
    """The one run of `measured`."""
    return store.load(measured).runs[0]


@pytest.fixture
def measured_shape(measured_run):
    """Its one shape."""
    return shapes(measured_run)[0]

"""Imports point one way (DESIGN, section 2)."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MODULES = sorted((ROOT / "harness").glob("*.py"))
FRAMEWORKS = {"torch", "jax", "jaxlib", "triton", "open_clip", "tensorflow", "flax", "optax"}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_no_module_imports_a_framework_or_a_report(path):
    tree = ast.parse(path.read_text())
    for node in tree.body:
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        for name in names:
            package = name.partition(".")[0]
            assert package not in FRAMEWORKS | {"reports"}
            assert package != "baselines" or name == "baselines.interface"


def test_importing_everything_loads_no_framework():
    names = [f"harness.{path.stem}" for path in MODULES if path.stem != "__main__"]
    script = (
        f"import importlib, sys\n"
        f"for name in {names}: importlib.import_module(name)\n"
        f"sys.exit(str(sorted({FRAMEWORKS} & set(sys.modules))) if {FRAMEWORKS} & set(sys.modules) else 0)"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr

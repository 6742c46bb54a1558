"""Fixtures of the set-up's tests."""

from pathlib import Path

import pytest

from tests.setup.project import CMAKE, Project, copy_project


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A copy of the set-up, with no cmake and no compiler on PATH."""
    return copy_project(tmp_path)


@pytest.fixture
def buildable(project: Project) -> Project:
    """The same with a compiler and a cmake that only take notes."""
    project.add_program("cmake", CMAKE)
    project.add_program("c++", "#!/bin/sh\nexit 0\n")
    return project

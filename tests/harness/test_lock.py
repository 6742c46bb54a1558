"""One measurement at a time: within a user by a file, across users by a name that the kernel keeps."""

import os
import socket
import subprocess
import sys

import pytest

from harness import lock
from harness.cases import ConfigurationError


@pytest.fixture
def own_name(monkeypatch, tmp_path):
    """A name and a folder of this test's own, so that a measurement on this machine does not matter."""
    name = f"\0scaling-contrasts-test-{os.getpid()}-{tmp_path.name}"
    monkeypatch.setattr(lock, "MACHINE_WIDE", name)
    monkeypatch.setattr(lock, "folder", lambda: tmp_path / "lock")
    return name


def test_a_second_measurement_of_this_user_is_told_about_the_first(own_name):
    with lock.measuring("the first"):
        with pytest.raises(ConfigurationError, match=rf"process {os.getpid()}: the first"):
            with lock.measuring("the second"):
                pass
    with lock.measuring("the third"):
        pass


def test_another_users_measurement_is_named_by_its_process(own_name):
    program = f"import socket, sys; s = socket.socket(socket.AF_UNIX); s.bind({own_name!r}); s.listen(); "
    program += "print(); sys.stdin.read()"
    holder = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        holder.stdout.readline()
        with pytest.raises(ConfigurationError, match=rf"process {holder.pid} of user {os.getuid()}\); wait"):
            with lock.measuring("ours"):
                pass
    finally:
        holder.kill()
        holder.wait()
    with lock.measuring("ours, once it has died"):
        with socket.socket(socket.AF_UNIX) as other, pytest.raises(OSError):
            other.bind(own_name)


def test_a_folder_of_its_own_is_a_lock_of_its_own(own_name, tmp_path):
    with lock.measuring("here"), lock.measuring("there", tmp_path / "there"):
        pass

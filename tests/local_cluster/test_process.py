import os
import signal
import sys
import time
from pathlib import Path

import pytest

from suwi.local_cluster.process import ProcessId, ProcessState, spawn

_SLEEP = (sys.executable, "-c", "import time; print('begun', flush=True); time.sleep(600)")


def wait_for(process: ProcessId, state: ProcessState) -> None:
    until_s = time.monotonic() + 120
    while process.state is not state:
        assert time.monotonic() < until_s
        time.sleep(0.01)


def test_a_process_is_running_then_paused_then_dead(tmp_path: Path) -> None:
    process = spawn(_SLEEP, str(tmp_path / "log"), dict(os.environ))
    assert process.state is ProcessState.RUNNING
    process.send(signal.SIGSTOP)
    wait_for(process, ProcessState.PAUSED)
    process.send(signal.SIGKILL)
    wait_for(process, ProcessState.DEAD)
    assert not process.send(signal.SIGKILL)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the system reports it as one")
def test_a_process_of_which_a_thread_still_runs_is_not_dead(tmp_path: Path) -> None:
    """After SIGKILL its first thread may end before the others, and its sockets still accept."""
    first_ends = (
        "import ctypes, threading, time; threading.Thread(target=time.sleep, args=(600,)).start(); "
        "print('begun', flush=True); ctypes.CDLL(None).pthread_exit(None)"
    )
    log = tmp_path / "log"
    process = spawn((sys.executable, "-c", first_ends), str(log), dict(os.environ))
    until_s = time.monotonic() + 60
    while b") Z" not in Path(f"/proc/{process.pid}/stat").read_bytes():
        assert time.monotonic() < until_s, log.read_text()
        time.sleep(0.01)
    assert process.state is ProcessState.RUNNING
    process.send(signal.SIGKILL)
    wait_for(process, ProcessState.DEAD)


def test_the_output_is_appended_to_the_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("before\n")
    process = spawn(_SLEEP, str(log), dict(os.environ))
    until_s = time.monotonic() + 120
    while "begun" not in log.read_text():
        assert time.monotonic() < until_s
        time.sleep(0.01)
    process.send(signal.SIGKILL)
    assert log.read_text() == "before\nbegun\n"


def test_a_process_with_a_recycled_pid_is_not_signalled() -> None:
    recycled = ProcessId(os.getpid(), "the start of another process")
    assert recycled.state is ProcessState.DEAD
    assert not recycled.send(signal.SIGTERM)


def test_a_process_does_not_keep_files_of_its_caller_open(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)
    process = spawn(_SLEEP, str(tmp_path / "log"), dict(os.environ))
    os.close(writer)
    assert os.read(reader, 1) == b""  # blocks as long as anybody has the other end
    os.close(reader)
    process.send(signal.SIGKILL)


def test_a_process_can_be_interrupted_if_its_caller_ignores_sigint(tmp_path: Path) -> None:
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        process = spawn(_SLEEP, str(tmp_path / "log"), dict(os.environ))
    finally:
        signal.signal(signal.SIGINT, handler)
    process.send(signal.SIGINT)
    wait_for(process, ProcessState.DEAD)

"""The demo's processes: their end is noticed, their last words are told, and none is left behind."""

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pillarbox.torture.processes import Process, Processes, ProcessFailed


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    with Processes(tmp_path) as processes:
        yield processes


def start(processes: Processes, directory: Path, code: str) -> Process:
    """Start a module that was just written."""
    (directory / "program.py").write_text(code)
    return processes.start("program", "program", environment={"PYTHONPATH": str(directory)})


def test_a_process_that_ends_badly_is_told_with_its_last_words(processes: Processes, tmp_path: Path) -> None:
    process = start(processes, tmp_path, "raise SystemExit('no money left')")
    with pytest.raises(ProcessFailed, match="the program ended with 1:\nno money left"):
        process.finish()


def test_a_process_that_should_go_on_may_not_end_at_all(processes: Processes, tmp_path: Path) -> None:
    process = start(processes, tmp_path, "")
    process.finish()
    process.check()
    with pytest.raises(ProcessFailed, match="ended with 0"):
        process.check(may_end=False)


def test_a_process_that_has_ended_cannot_be_frozen(processes: Processes, tmp_path: Path) -> None:
    process = start(processes, tmp_path, "")
    process.finish()
    with pytest.raises(ProcessFailed, match="ended with 0"):
        process.freeze()


def test_writing_to_a_process_that_is_gone_is_told(processes: Processes, tmp_path: Path) -> None:
    process = start(processes, tmp_path, "import os, signal; os.close(0); print('closed', flush=True); signal.pause()")
    deadline = time.monotonic() + 30
    while "closed" not in process.last_words():
        assert time.monotonic() < deadline
    with pytest.raises(ProcessFailed, match="does not listen"):
        process.write(b".")


def test_a_process_that_does_not_stop_is_told(
    processes: Processes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pillarbox.torture.processes.PATIENCE", 0.05)
    process = start(processes, tmp_path, "import signal\nwhile True: signal.pause()")
    process.freeze()
    with pytest.raises(ProcessFailed, match="did not end within"):
        process.stop()


def test_leaving_kills_what_still_runs(tmp_path: Path) -> None:
    with Processes(tmp_path) as processes:
        process = start(processes, tmp_path, "import signal\nwhile True: signal.pause()")
    with pytest.raises(ProcessFailed, match=f"ended with -{signal.SIGKILL.value}"):
        process.check()


def test_settings_of_the_user_do_not_reach_the_demo(
    processes: Processes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PILLARBOX_DATABASE", "sqlite:///precious.db")
    code = "import os\nraise SystemExit([name for name in os.environ if name.startswith('PILLARBOX_')] or 0)"
    start(processes, tmp_path, code).finish()


def test_one_that_was_not_ready_for_the_signal_has_stopped_all_the_same(processes: Processes, tmp_path: Path) -> None:
    process = start(processes, tmp_path, "import signal; signal.pause()")
    process.stop()
    assert process.code == -signal.SIGTERM


def test_one_that_stops_badly_is_told(processes: Processes, tmp_path: Path) -> None:
    process = start(
        processes,
        tmp_path,
        "import signal, sys\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit('not now'))\nprint('on', flush=True)\n"
        "while True: signal.pause()",
    )
    deadline = time.monotonic() + 30
    while "on" not in process.last_words():
        assert time.monotonic() < deadline
    with pytest.raises(ProcessFailed, match="ended with 1:\non\nnot now"):
        process.stop()

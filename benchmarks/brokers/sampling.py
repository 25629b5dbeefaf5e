"""Where the time of a Python process goes: its threads' stacks are looked at some hundred times a second, and what the
kernel says that each thread has used is shared out among what it was seen at."""

import sys
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from os import sysconf
from pathlib import Path
from types import FrameType

EVERY = 0.002
PARTS = (
    ("/pillarbox/stores/", "read and settle in PostgreSQL"),
    ("/psycopg", "read and settle in PostgreSQL"),
    ("/pillarbox/core/message.py", "encode"),
    ("/pillarbox/brokers/", "our publisher, with the C code it calls"),
    ("/pillarbox/relay/", "window and verdicts"),
    ("/pillarbox/core/", "window and verdicts"),
    ("/confluent_kafka/", "client library"),
    ("/redis/", "client library"),
    ("/hiredis/", "client library"),
    ("/nats/", "client library"),
    ("/aiormq/", "client library"),
    ("/aio_pika/", "client library"),
    ("/pamqp/", "client library"),
    ("/benchmarks/", "the calling loop"),
)
"""A sample belongs to the first of these that its stack meets, from the inside out."""
ELSEWHERE = "event loop and the rest"
NATIVE = "threads of the client that are no Python"
WAITING = {("selectors.py", "select"), ("threading.py", "wait"), ("carrier.py", "_gather"), ("carrier.py", "_flush")}
"""Where a thread that does nothing is found."""
_TICK = 1_000_000 / sysconf("SC_CLK_TCK")


class Sampler:
    """Looks at all threads of this process but its own, from `start` to `stop`."""

    def __init__(self) -> None:
        self._seen: dict[int, Counter[str]] = {}
        self.functions: Counter[str] = Counter()
        """How often each function was found at work, by its file and name."""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._before: dict[int, float] = {}

    def start(self) -> None:
        self._thread.start()
        self._before = dict(used_by_threads())

    def stop(self) -> dict[str, float]:
        """Give the microseconds of processor time by part."""
        used = {thread: micros - self._before.get(thread, 0.0) for thread, micros in used_by_threads()}
        self._ended.set()
        self._thread.join()
        assert self._thread.native_id is not None
        used.pop(self._thread.native_id, None)
        return dict(self._shared_out(used))

    def _look(self) -> None:
        own = threading.get_ident()
        while not self._ended.wait(EVERY):
            native = {thread.ident: thread.native_id for thread in threading.enumerate()}
            for ident, frame in sys._current_frames().items():
                thread = native.get(ident)
                if ident != own and thread is not None and not is_waiting(frame):
                    self._seen.setdefault(thread, Counter())[part_of(frame)] += 1
                    self.functions[name_of(frame)] += 1

    def _shared_out(self, used: dict[int, float]) -> Counter[str]:
        parts: Counter[str] = Counter()
        for thread, micros in used.items():
            seen = self._seen.get(thread, Counter({NATIVE: 1}))
            for part, count in seen.items():
                parts[part] += micros * count / seen.total()  # type: ignore[assignment]
        return parts


def is_waiting(frame: FrameType) -> bool:
    code = frame.f_code
    return (Path(code.co_filename).name, code.co_name) in WAITING


def name_of(frame: FrameType) -> str:
    path = Path(frame.f_code.co_filename)
    return f"{path.parent.name}/{path.name} {frame.f_code.co_qualname}"


def part_of(frame: FrameType) -> str:
    """Name what a stack is at."""
    for file in files(frame):
        for path, part in PARTS:
            if path in file:
                return part
    return ELSEWHERE


def files(frame: FrameType | None) -> Iterator[str]:
    """Give the files of a stack from the inside out, up to the event loop: who runs that has no part in it."""
    while frame is not None and not frame.f_code.co_filename.endswith("asyncio/base_events.py"):
        yield frame.f_code.co_filename
        frame = frame.f_back


def used_by_threads() -> Iterable[tuple[int, float]]:
    """Give the microseconds of processor time that each thread of this process has used."""
    for task in Path("/proc/self/task").iterdir():
        try:
            yield int(task.name), _used(task)
        except FileNotFoundError:
            continue  # it has ended


def used_by(pids: Iterable[int]) -> float:
    """Give the microseconds of processor time that processes have used."""
    return sum(_used(Path(f"/proc/{pid}")) for pid in pids)


def _used(of: Path) -> float:
    fields = (of / "stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * _TICK

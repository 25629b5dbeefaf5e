"""`pillarbox` with batches of three, stopped in a replay's batch number N: python stopped_replay.py HOW N WORDS…

HOW: `before` or `after` the batch, `inside` its transaction, some time `while` it is on its way, by kill -9; `ctrl-c`.
"""

import os
import random
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

from pillarbox.cli.app import run
from pillarbox.stores import replays
from pillarbox.stores.postgres.store import PostgresStore
from pillarbox.stores.sqlite.replaying import Replaying
from pillarbox.stores.sqlite.store import SqliteStore

replays.BATCH = 3


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def stop_in(store: type[Any], how: str, number: int) -> None:
    """Let the store's batch of this number be the last."""
    go_on, batches = store.replay, 0

    async def replay(self: Any, id: str) -> object:
        nonlocal batches
        batches += 1
        if batches < number:
            return await go_on(self, id)
        if how == "before":
            kill()
        if how == "while":
            threading.Timer(random.uniform(0, 0.01), kill).start()
        if how == "ctrl-c":
            os.kill(os.getpid(), signal.SIGINT)
        done = await go_on(self, id)
        if how == "after":
            kill()
        if how == "while":
            signal.pause()
        return done

    store.replay = replay


def killing(copy: Callable[..., None]) -> Callable[..., None]:
    def copy_and_die(self: Replaying, *more: Any) -> None:
        copy(self, *more)
        kill()

    return copy_and_die


if __name__ == "__main__":
    how, number = sys.argv[1], int(sys.argv[2])
    if how == "inside":
        Replaying._copy = killing(Replaying._copy)  # type: ignore[method-assign]
    else:
        for store in (SqliteStore, PostgresStore):
            stop_in(store, how, number)
    sys.argv[1:] = sys.argv[3:]
    run()

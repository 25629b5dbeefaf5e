"""A replay that is stopped or killed in between goes on: nothing twice, nothing left out, each aggregate in its order,
from log and archive together."""

import asyncio
import json
import re
import shlex
import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

from pillarbox import Event, Relay
from pillarbox.admin.admin import Admin
from pillarbox.core.message import Message
from pillarbox.ports import Query, Replay, Retention
from pillarbox.psycopg import Outbox
from pillarbox.settings import Settings
from pillarbox.stores import replays
from pillarbox.wiring import open_admin
from tests.integration.postgres_shop import made

if TYPE_CHECKING:
    from tests.acceptance.conftest import Shop

STOPPED = Path(__file__).with_name("stopped_replay.py")
EVENTS = 40


class Stopped:
    """A shop whose events were published, half of them archived since, and a command that is stopped."""

    def __init__(self, shop: "Shop", database: str) -> None:
        self.shop, self.database = shop, database

    def type(self, words: str, *, how: str = "", batch: int = 1, code: int = 0) -> "subprocess.CompletedProcess[str]":
        """Type a command; stop it, if that is said, in one of its batches."""
        line = [*shlex.split(words), "--database", self.database]
        start = [str(STOPPED), how, str(batch)] if how else ["-m", "pillarbox"]
        done = subprocess.run(
            [sys.executable, *start, *line],
            cwd=self.shop.directory,
            env=self.shop.environment,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == code, f"{words}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done

    @property
    def settings(self) -> Settings:
        """In this process, which is not what is tried here."""
        return Settings(database=self.database.replace("sqlite:///", f"sqlite:///{self.shop.directory}/"))

    def relay(self) -> list[tuple[str, int, str | None]]:
        """Carry what there is; give the aggregate, the number and the replay of each message."""
        sent: list[Message] = []
        asyncio.run(Relay(self.settings, publish=sent.extend).run_once())
        headers = [message.headers for message in sent]
        return [(of["aggregate_id"], int(of["number"]), of.get("pillarbox-replay")) for of in headers]

    def archive(self) -> None:
        """Move what was published to the archive."""

        async def prune() -> None:
            async with open_admin(self.settings) as admin:
                await admin.prune(Retention(published=timedelta(0), archive=timedelta(days=7)))

        asyncio.run(prune())

    def deeds(self) -> list[tuple[str, int]]:
        """Read the audit, the oldest first."""

        async def read() -> list[tuple[str, int]]:
            async with open_admin(self.settings) as admin:
                return [(deed.what, deed.count) for deed in reversed(await admin.deeds())]

        return asyncio.run(read())

    def id(self) -> str:
        """Find the newest replay in the audit, as somebody does whose terminal is gone."""
        found = re.search(r"\d{8}-\d{6}-[0-9a-f]{6}", self.deeds()[-1][0])
        assert found
        return found[0]


def events(half: int) -> list[Event[dict[str, int]]]:
    return [
        Event("Placed", {"n": n}, aggregate=("order", n % 3), topic="orders", numbered=True)
        for n in range(half * EVENTS // 2, (half + 1) * EVENTS // 2)
    ]


@pytest.fixture(params=["sqlite", "postgresql"])
def stopped(shop: "Shop", request: pytest.FixtureRequest) -> Stopped:
    postgres = request.param == "postgresql"
    if postgres:
        stopped = Stopped(shop, made(request.getfixturevalue("database")))
    else:
        shop.migrate("shop.db")
        stopped = Stopped(shop, shop.database)
    for half in range(2):
        if postgres:
            with psycopg.connect(stopped.database) as connection:
                Outbox().add(connection, *events(half))
        else:
            shop.add(*events(half))
        assert len(stopped.relay()) == EVENTS // 2
        if not half:
            stopped.archive()
    return stopped


def once_and_in_order(sent: list[tuple[str, int, str | None]], replay: str | None) -> None:
    assert {id for _, _, id in sent} == {replay}
    for aggregate in "012":
        numbers = [number for of, number, _ in sent if of == aggregate]
        assert numbers == list(range(1, len(events(0) + events(1)) // 3 + (2 if aggregate == "0" else 1)))


def test_a_replay_that_is_killed_goes_on_with_nothing_twice_and_nothing_left_out(stopped: Stopped) -> None:
    killed = -signal.SIGKILL
    stopped.type("replay --all --again --yes", how="after", batch=3, code=killed)
    id = stopped.id()
    resume = f"replay --resume {id} --yes"
    for how, batch in (("before", 2), ("while", 2)):
        stopped.type(resume, how=how, batch=batch, code=killed)
    if stopped.database.startswith("sqlite"):
        stopped.type(resume, how="inside", code=killed)
    stopped.type(resume)
    once_and_in_order(stopped.relay(), id)
    assert sum(count for what, count in stopped.deeds() if what.startswith("replay ")) == EVENTS


@pytest.mark.parametrize("stopped", ["sqlite", pytest.param("postgresql", marks=pytest.mark.soak)], indirect=True)
def test_ctrl_c_ends_the_batch_and_says_how_to_go_on(stopped: Stopped) -> None:
    done = stopped.type("replay --all --yes", how="ctrl-c", batch=2, code=130)
    id = stopped.id()
    assert done.stdout == f"replayed 6 events, as replay {id}\n"
    last = done.stderr.splitlines()[-1]
    said = re.fullmatch(r"stopped before its end; `pillarbox (replay --resume \S+) --database (\S+)` goes on", last)
    assert said, last
    assert said[1] == f"replay --resume {id}"
    rest = stopped.type(f"{said[1]} --dry-run")
    would = "34 published events would be published again, as copies of what consumers have"
    assert (rest.stdout, rest.stderr) == ("", f"replay {id} has handed over 6 events; {would}\n")
    document = json.loads(stopped.type(f"{said[1]} --yes --json").stdout)
    assert document == {"replayed": 34, "matched": 34, "replay": id, "finished": True, "dry_run": False}
    once_and_in_order(stopped.relay(), None)
    over = stopped.type(f"{said[1]} --yes")
    assert over.stderr == f"replay {id} has handed over 40 events and is finished\n"
    assert stopped.relay() == []


def test_it_goes_on_as_it_began(shop: "Shop") -> None:
    shop.migrate("shop.db")
    stopped = Stopped(shop, shop.database)
    assert "it goes on as it began" in stopped.type("replay --resume 1 --rate 3", code=2).stderr
    assert stopped.type("replay --resume 1", code=4).stderr == "no replay has the id 1\n"


def test_two_that_go_on_at_once_do_the_work_of_one(stopped: Stopped, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replays, "BATCH", 2)

    async def finish(admin: Admin, replay: Replay) -> None:
        async for _ in admin.replaying(replay):
            pass

    async def both() -> None:
        async with open_admin(stopped.settings) as one, open_admin(stopped.settings) as other:
            replay = await one.begin_replay(Query(limit=1000))
            await asyncio.gather(finish(one, replay), finish(other, replay))

    asyncio.run(both())
    once_and_in_order(stopped.relay(), None)

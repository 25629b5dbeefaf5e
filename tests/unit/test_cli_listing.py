"""Lists on a terminal: an id can be copied, however narrow it is."""

import io
from datetime import UTC, datetime

import pytest
from rich.console import Console

from pillarbox.cli import found
from pillarbox.cli.found import list_found, list_groups
from pillarbox.cli.listing import fit, print_listing
from pillarbox.ports import DeadGroup, Query, Record
from pillarbox.settings import Settings

ID = "019a9c00-0000-7000-8000-000000000001"
AT = datetime(2026, 1, 31, 12, tzinfo=UTC)
ERROR = "HTTP 503: " + "the other side is being mended " * 5
HEADERS = ("ID", "CONSUMER", "STATUS", "TYPE", "TOPIC", "AGGREGATE", "CREATED (UTC)", "TRIES", "LAST ERROR")
WIDTHS = (60, 80, 100, 120, 140, 400)


def record(consumer: str | None = None) -> Record:
    return Record(
        position=1,
        event_id=ID,
        status="retrying",
        type="OrderPlacedBySomebody",
        topic="order-events",
        aggregate=("order", "4711"),
        created_at=AT,
        attempts=3,
        last_error=ERROR,
        consumer=consumer,
    )


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Console:
    console = Console(file=io.StringIO(), width=80, force_terminal=True, no_color=True, highlight=False, soft_wrap=True)
    monkeypatch.setattr("pillarbox.cli.listing.console", lambda: console)
    return console


def lines(screen: Console) -> list[str]:
    assert isinstance(screen.file, io.StringIO)
    return [line.rstrip() for line in screen.file.getvalue().replace("\x1b[1m", "").replace("\x1b[0m", "").splitlines()]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("consumer", [None, "billing"])
def test_no_id_and_no_header_is_folded(
    screen: Console, monkeypatch: pytest.MonkeyPatch, width: int, consumer: str | None
) -> None:
    screen.width = width
    monkeypatch.setattr(found, "find", lambda settings, query: [record(consumer)] * 2)
    list_found(Settings(), Query(), json=False, none="events")
    head, *rows = lines(screen)
    assert len(rows) == 2
    assert all(row.startswith(f"{ID}  ") for row in rows)
    shown = [name for name in HEADERS if name in head]
    assert head.split() == " ".join(shown).split()
    assert {"ID", "STATUS", "TYPE", "LAST ERROR"} <= set(shown)
    if width >= 80:
        assert max(map(len, (head, *rows))) <= width
    assert all(row.endswith("…") for row in rows) == (width < 400)


def test_errors_are_grouped_with_an_example_that_can_be_copied(
    screen: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("asyncio.run", lambda looking: looking.close() or [DeadGroup(ERROR, 7, AT, AT, ID)])
    list_groups(Settings(), Query(), json=False)
    head, row = lines(screen)
    assert head.split() == ["EVENTS", "EXAMPLE", "ERROR"]
    assert f" {ID}  HTTP 503: the other side" in row


def test_what_may_not_be_cut_runs_on(screen: Console) -> None:
    print_listing(("WHO", "WHAT"), [("ann", f"drop ids={ID},{ID},{ID}")])
    assert lines(screen)[1] == f"ann  drop ids={ID},{ID},{ID}"


def test_columns_are_cut_before_they_are_left_out() -> None:
    widths = {"ID": 36, "TOPIC": 20, "ERROR": 50}
    assert fit(widths, 110, {"ERROR": 10, "TOPIC": 8}, ["TOPIC"]) == widths
    assert fit(widths, 60, {"ERROR": 10, "TOPIC": 8}, ["TOPIC"]) == {"ID": 36, "TOPIC": 10, "ERROR": 10}
    assert fit(widths, 57, {"ERROR": 10, "TOPIC": 8}, ["TOPIC"]) == {"ID": 36, "ERROR": 19}

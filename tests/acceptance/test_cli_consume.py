"""`pillarbox consume`: the handlers of a module run; what is no inbox is refused; the dead of an inbox are mended."""

import json
import re
import signal
import sqlite3
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from pillarbox import Event
from tests.acceptance.test_systemd import manager

if TYPE_CHECKING:
    from tests.acceptance.conftest import Shop

Until = Callable[[Callable[[], bool]], None]
BILLING = """
import sqlite3
from pathlib import Path
from pillarbox import Reject
from pillarbox.dbapi import Inbox

inbox = Inbox("billing", lambda: sqlite3.connect("billing.db"))
not_an_inbox = 5

@inbox.handler("OrderPlaced")
def bill(connection, event):
    if event.payload["order_id"] == 13 and not Path("superstition-is-over").exists():
        raise Reject("we do not bill order 13")
    connection.execute("INSERT INTO invoices VALUES (?)", [event.payload["order_id"]])
"""
HANGING = """
import threading
from pathlib import Path

@inbox.handler("OrderPaid")
def hang(connection, event):
    Path("it-hangs").touch()
    if not Path("it-goes-on").exists():
        threading.Event().wait()
    connection.execute("INSERT INTO invoices VALUES (?)", [event.payload["order_id"]])
"""
CONSUME = "pillarbox consume billing:inbox --topic order-events --broker sqlite:///stream.db"


@pytest.fixture
def billing(migrated: "Shop") -> "Shop":
    (migrated.directory / "billing.py").write_text(BILLING)
    migrated.migrate("billing.db")
    connection = sqlite3.connect(migrated.directory / "billing.db")
    connection.execute("CREATE TABLE invoices (order_id)")
    connection.close()
    return migrated


def invoices(shop: "Shop") -> list[int]:
    connection = sqlite3.connect(shop.directory / "billing.db")
    try:
        return [row[0] for row in connection.execute("SELECT order_id FROM invoices ORDER BY rowid")]
    finally:
        connection.close()


def relay(shop: "Shop") -> None:
    shop.type(f"pillarbox relay once --database {shop.database} --broker {shop.broker}")


def test_the_handlers_of_a_module_in_the_current_directory_run(billing: "Shop", until: Until) -> None:
    billing.placed(7)
    billing.placed(8)
    relay(billing)
    with billing.running(CONSUME):
        until(lambda: sorted(invoices(billing)) == [7, 8])


def test_a_second_signal_stops_a_consumer_at_once_and_its_event_is_handled_after_a_restart(
    billing: "Shop", until: Until
) -> None:
    (billing.directory / "billing.py").write_text(BILLING + HANGING)
    billing.add(Event("OrderPaid", {"order_id": 7}, aggregate=("order", 7)))
    relay(billing)
    with manager(str(billing.directory / "notify")) as systemd:
        billing.environment |= systemd.environment()
        process = billing.start(CONSUME)
        try:
            until((billing.directory / "it-hangs").exists)
            process.send_signal(signal.SIGTERM)
            systemd.until("STOPPING=1")
            assert process.poll() is None  # it waits for the handler
            process.send_signal(signal.SIGTERM)
            assert process.wait(5) == 1
        finally:
            process.kill()
            process.communicate()
    assert invoices(billing) == []
    (billing.directory / "it-goes-on").touch()
    with billing.running(CONSUME):
        until(lambda: invoices(billing) == [7])


def test_once_consumes_until_nothing_is_left(billing: "Shop") -> None:
    billing.placed(7)
    billing.placed(8)
    relay(billing)
    assert billing.type(f"{CONSUME} --once").stderr == "handled 2 events\n"
    assert sorted(invoices(billing)) == [7, 8]
    assert billing.json(f"{CONSUME} --once --json") == {"handled": 0, "passed_over": {}, "left": {}}


def test_once_says_what_it_left(billing: "Shop") -> None:
    billing.placed(13)
    billing.placed(13)
    billing.placed(7)
    relay(billing)
    summary, warning = billing.type(f"{CONSUME} --once").stderr.splitlines()[-2:]
    assert summary == "handled 1 event"
    assert "WARNING left: 1 blocked, 1 dead; `pillarbox events list --inbox --database sqlite:///" in warning
    assert len(billing.type(_named(warning)).stdout.splitlines()) == 1 + 2
    assert billing.json(f"{CONSUME} --once --json")["left"] == {"blocked": 1, "dead": 1}


def test_once_says_what_it_passed_over(billing: "Shop") -> None:
    billing.add(*(Event("OrderShiped", {}, aggregate=("order", n)) for n in (1, 2)), Event("OrderBilled", {}))
    billing.placed(7)
    relay(billing)
    said = billing.type(f"{CONSUME} --topic events --once --set inbox.unhandled=ignore").stderr
    assert said == "handled 1 event; passed over 3 events without a handler: 2 OrderShiped, 1 OrderBilled\n"
    assert billing.json(f"{CONSUME} --once --json") == {"handled": 0, "passed_over": {}, "left": {}}


def _named(line: str) -> str:
    """Give the command that a line names, as somebody copies it."""
    return line.partition("`")[2].partition("`")[0]


def test_a_line_of_the_log_names_the_handlers_own_line_and_a_command_that_shows_its_words(billing: "Shop") -> None:
    helper = "import json\n\ndef read(event):\n    json.loads('{' + 'hunter2 4111')\n"
    (billing.directory / "helper.py").write_text(helper)
    handler = BILLING.replace("    if event", "    import helper; helper.read(event)\n    if event")
    (billing.directory / "billing.py").write_text(handler)
    id = billing.placed(7)
    relay(billing)
    line = next(one for one in billing.type(f"{CONSUME} --once").stderr.splitlines() if id in one)
    at = 1 + handler.splitlines().index("    import helper; helper.read(event)")
    assert f"bill raised JSONDecodeError at billing.py, line {at}; its words are kept with the event (`" in line
    assert _named(line).startswith(f"pillarbox events show {id} --inbox --database sqlite:///")
    assert "JSONDecodeError: Expecting property name" in billing.type(_named(line)).stdout


def test_a_command_in_the_log_finds_tables_with_another_prefix(billing: "Shop") -> None:
    tables = "--database sqlite:///billing.db --set outbox.prefix=its_"
    billing.type(f"pillarbox migrate up {tables}")
    with_prefix = BILLING.replace('connect("billing.db"))', 'connect("billing.db"), prefix="its_")')
    (billing.directory / "billing.py").write_text(with_prefix)
    id = billing.placed(13)
    relay(billing)
    left = billing.type(f"{CONSUME} --once").stderr.splitlines()[-1]
    assert id in billing.type(_named(left)).stdout


def _register_a_handler(billing: "Shop") -> None:
    # Python takes a module that is as long as before, and changed within the same second, for the one it has compiled.
    longer = BILLING.replace("OrderPlaced", "OrderShiped") + "\n# Handles what is shipped.\n"
    (billing.directory / "billing.py").write_text(longer)


def test_a_type_without_a_handler_is_a_dead_letter_that_can_be_retried(billing: "Shop") -> None:
    (id,) = billing.add(Event("OrderShiped", {"order_id": 7}, aggregate=("order", 7)))
    relay(billing)
    assert "handled 0 events" in billing.type(f"{CONSUME} --once").stderr
    (record,) = billing.json("pillarbox dead list --json --inbox --database sqlite:///billing.db")
    assert record["event_id"] == id
    assert record["last_error"].startswith("no handler for type 'OrderShiped' in the inbox 'billing': register one")
    command = _named(record["last_error"])
    assert command.startswith(f"pillarbox dead retry {id} --inbox --database sqlite:///")
    _register_a_handler(billing)
    billing.type(f"{command} --yes")
    billing.type(f"{CONSUME} --once")
    assert invoices(billing) == [7]


def test_a_type_without_a_handler_can_stop_the_consumer(billing: "Shop") -> None:
    (id,) = billing.add(Event("OrderShiped", {"order_id": 7}, aggregate=("order", 7)))
    relay(billing)
    for how in ("", " --once"):
        line = billing.type(f"{CONSUME} --set inbox.unhandled=fail{how}", code=1).stderr.splitlines()[-1]
        assert line.startswith("pillarbox: no handler for type 'OrderShiped' in the inbox 'billing'")
        assert id in line
        assert "'order-events'" in line
    assert _parked(billing) == []
    _register_a_handler(billing)
    billing.type(f"{CONSUME} --once")
    assert invoices(billing) == [7]


def test_a_module_that_cannot_be_imported_is_one_line(billing: "Shop") -> None:
    (billing.directory / "billing.py").write_text("1 / 0")
    line = "billing:inbox: its module cannot be imported: ZeroDivisionError: division by zero; --debug shows where"
    assert billing.type(CONSUME, code=2).stderr == f"pillarbox: {line}\n"


def test_a_module_whose_handler_lacks_its_parentheses_is_told_how_to_write_it(billing: "Shop") -> None:
    (billing.directory / "billing.py").write_text(BILLING.replace('@inbox.handler("OrderPlaced")', "@inbox.handler"))
    assert (
        "bill is no type of event: write @inbox.handler('OrderPlaced') above it" in billing.type(CONSUME, code=2).stderr
    )


def test_a_handler_that_is_refused_is_told_in_its_own_words(billing: "Shop") -> None:
    (billing.directory / "billing.py").write_text(BILLING.replace("def bill(", "async def bill("))
    line = "billing:inbox: handler of 'OrderPlaced': it is async and this Inbox is not: take AsyncInbox, or make it a"
    assert billing.type(CONSUME, code=2).stderr == f"pillarbox: {line} plain function; --debug shows where\n"


def test_a_module_that_needs_an_extra_is_told_the_line_that_installs_it(billing: "Shop") -> None:
    hidden = "import sys\nsys.modules['sqlalchemy'] = None\nimport pillarbox.sqlalchemy\n"
    (billing.directory / "billing.py").write_text(hidden)
    line = "pillarbox.sqlalchemy needs the extra 'sqlalchemy': pip install 'pillarbox[sqlalchemy]'"
    assert billing.type(CONSUME, code=1).stderr == f"pillarbox: {line}\n"


def test_a_database_that_cannot_be_opened_is_not_said_to_be_in_memory(billing: "Shop") -> None:
    (billing.directory / "billing.py").write_text(BILLING.replace('"billing.db"', '"nowhere/billing.db"'))
    line = billing.type(f"{CONSUME} --once", code=1).stderr.splitlines()[-1]
    assert line == "pillarbox: the inbox's opener cannot open its database: unable to open database file"


def test_a_module_that_cannot_be_imported_tells_no_secret(billing: "Shop") -> None:
    refused = "raise RuntimeError('postgresql://shop:hunter2@localhost refused shop:hunter2@localhost')"
    (billing.directory / "billing.py").write_text(refused)
    line = billing.type(CONSUME, code=2).stderr
    assert "RuntimeError: postgresql://shop:***@" in line
    assert "hunter2" not in line


def test_what_a_handler_rejects_is_dead_and_can_be_retried(billing: "Shop", until: Until) -> None:
    id = billing.placed(13)
    relay(billing)
    dead = "--inbox --database sqlite:///billing.db"
    with billing.running(CONSUME):
        until(lambda: bool(_parked(billing)))
        (record,) = billing.json(f"pillarbox dead list --json {dead}")
        assert (record["event_id"], record["consumer"], record["status"]) == (id, "billing", "dead")
        assert record["last_error"].startswith("we do not bill order 13")
        assert (record["payload"], record["body_base64"]) == ({"order_id": 13}, None)
        shown = billing.type(f"pillarbox dead show {id} {dead}").stdout
        assert "we do not bill order 13" in shown
        elsewhere = billing.type(f"pillarbox dead show {id} --database sqlite:///billing.db", code=4).stderr
        assert elsewhere == f"no dead event has the id {id}; one that was received has it: add --inbox\n"
        elsewhere = billing.type(f"pillarbox events show {id} --inbox --database sqlite:///shop.db", code=4).stderr
        assert elsewhere == f"no event has the id {id}; one that was added has it: leave out --inbox\n"
        assert re.search(r'payload +\{"order_id": 13\}', shown)
        (billing.directory / "superstition-is-over").touch()
        done = billing.type(f"pillarbox dead retry {id} --yes --json {dead}")
        assert json.loads(done.stdout) == {"retried": 1, "matched": 1, "dry_run": False}
        until(lambda: invoices(billing) == [13])


def test_what_a_handler_rejects_can_be_dropped(billing: "Shop", until: Until) -> None:
    billing.placed(13)
    relay(billing)
    with billing.running(CONSUME):
        until(lambda: bool(_parked(billing)))
    done = billing.type("pillarbox dead drop --consumer billing --inbox --yes --database sqlite:///billing.db")
    assert done.stdout == "dropped 1 event\n"
    billing.type("pillarbox dead list --inbox --database sqlite:///billing.db", code=4)


def _parked(shop: "Shop", state: str = "dead") -> list[str]:
    connection = sqlite3.connect(shop.directory / "billing.db")
    try:
        sql = "SELECT event_id FROM pillarbox_inbox_parked WHERE state = ?"
        return [row[0] for row in connection.execute(sql, [state])]
    finally:
        connection.close()


@pytest.mark.parametrize("command", ["events list", "dead list"])
def test_a_list_of_what_was_received_says_whose_it_is(billing: "Shop", until: Until, command: str) -> None:
    id = billing.placed(13)
    relay(billing)
    with billing.running(CONSUME):
        until(lambda: bool(_parked(billing)))
    head, row = billing.type(f"pillarbox {command} --inbox --database sqlite:///billing.db").stdout.splitlines()
    assert head.split()[:3] == ["ID", "CONSUMER", "STATUS"]
    assert row.split()[:3] == [id, "billing", "dead"]


@pytest.mark.parametrize(
    ("body", "payload", "base64"),
    [
        (b'{"order_id":13}', {"order_id": 13}, None),
        ('"Grüße"'.encode(), "Grüße", None),
        (b'{"order_id":', '{"order_id":', None),
        (b"[NaN]", "[NaN]", None),
        (b"[" * 100_000, "[" * 100_000, None),
        (b"\xff\x00", None, "/wA="),
    ],
    ids=["JSON", "letters", "broken JSON", "NaN", "too deep", "no text"],
)
def test_a_body_that_was_received_is_shown_as_json_or_text_if_it_can_be(
    billing: "Shop", until: Until, body: bytes, payload: object, base64: str | None
) -> None:
    id = billing.placed(13)
    relay(billing)
    with billing.running(CONSUME):
        until(lambda: bool(_parked(billing)))
    connection = sqlite3.connect(billing.directory / "billing.db")
    with connection:
        connection.execute("UPDATE pillarbox_inbox_parked SET body = ?", [body])
    connection.close()
    record = billing.json(f"pillarbox events show {id} --inbox --json --database sqlite:///billing.db")
    assert (record["payload"], record["body_base64"]) == (payload, base64)


@pytest.mark.parametrize(
    ("place", "line"),
    [
        ("bilking:inbox", "bilking:inbox: there is no module 'bilking' here or on the path"),
        ("billing.deeper:inbox", "billing.deeper:inbox: there is no module 'billing.deeper' here or on the path"),
        (
            "billing.py:inbox",
            "billing.py:inbox: there is no module 'billing.py' here or on the path: write billing:inbox",
        ),
        ("billing:outbox", "billing:outbox: module 'billing' has no 'outbox'; its inboxes are inbox"),
        ("json:inbox", "json:inbox: module 'json' has no 'inbox', and no inbox under another name"),
        ("billing:not_an_inbox", "inbox: 5 is no Inbox of a door, such as pillarbox.sqlalchemy"),
    ],
)
def test_what_is_no_inbox_is_one_line_and_code_2(billing: "Shop", place: str, line: str) -> None:
    done = billing.type(f"pillarbox consume {place} --topic order-events --broker sqlite:///stream.db", code=2)
    assert done.stderr == f"pillarbox: {line}\n"


def test_tables_that_are_missing_name_the_command(billing: "Shop") -> None:
    (billing.directory / "billing.db").unlink()
    done = billing.type(CONSUME, code=1)
    line = done.stderr.splitlines()[-1]
    assert "`pillarbox migrate up --database sqlite:///" in line
    command = line.partition("`")[2].partition("`")[0]
    assert command.endswith("billing.db")
    billing.type(command)
    billing.type(f"{CONSUME} --once")


def test_an_event_whose_handler_failed_shows_where(billing: "Shop", until: Until) -> None:
    (id,) = billing.add(Event("OrderPlaced", {"no": "order_id"}, aggregate=("order", 1)))
    relay(billing)
    show = f"pillarbox events show {id} --inbox --database sqlite:///billing.db"
    with billing.running(CONSUME):
        until(lambda: bool(_parked(billing, "retrying")))
    assert 'if event.payload["order_id"] == 13' in billing.type(show).stdout
    assert "KeyError: 'order_id'" in billing.json(f"{show} --json")["traceback"]

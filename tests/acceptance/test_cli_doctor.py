"""`pillarbox doctor`, through the real command."""

from typing import TYPE_CHECKING

import pytest

from pillarbox import Event

if TYPE_CHECKING:
    from tests.acceptance.conftest import Shop

FINE = """\
✓ database
✓ version of the tables
✓ tables
✓ journal mode
✓ synchronous
✓ events are relayed
✓ expired relays
✓ broker
✓ topics
✓ publish timeout
✓ retention.inbox
"""


@pytest.fixture
def doctor(migrated: "Shop") -> str:
    return f"pillarbox doctor --database {migrated.database} --broker {migrated.broker}"


@pytest.fixture
def relayed(migrated: "Shop") -> "Shop":
    """A shop whose events were all published."""
    migrated.placed()
    migrated.add(Event("Asked", {}, topic="questions"))
    migrated.type(f"pillarbox relay once --database {migrated.database} --broker {migrated.broker}")
    return migrated


def test_all_is_well_with_the_defaults(relayed: "Shop", doctor: str) -> None:
    done = relayed.type(doctor)
    assert (done.stdout, done.stderr) == (FINE, "")
    answer = relayed.json(f"{doctor} --json")
    assert answer["healthy"] is True
    assert answer["findings"][0] == {"check": "database", "severity": "fine", "line": "", "commands": []}
    assert [finding["check"] for finding in answer["findings"]] == [line[2:] for line in FINE.splitlines()]


def test_a_problem_is_code_3(relayed: "Shop", doctor: str) -> None:
    short = f"{doctor} --set 'retention.inbox=3 days' --set 'retention.published=1 day'"
    orders, questions, *fine = relayed.type(short, code=3).stdout.splitlines()
    assert orders.startswith(
        "✗ retention.inbox        the topic order-events is kept for 7 days (by the embedded broker)"
    )
    assert questions.startswith("✗ retention.inbox        the topic questions is kept for 7 days")
    assert {line[0] for line in fine} == {"✓"}
    named, *_ = relayed.type(f"{short} --topic mails", code=3).stdout.splitlines()
    assert named.startswith("✗ retention.inbox        the topic mails is kept for 7 days")
    answer = relayed.json(f"{short} --topic mails --json", code=3)
    assert answer["healthy"] is False
    assert [one["check"] for one in answer["findings"] if one["severity"] == "problem"] == ["retention.inbox"]


def test_what_mends_it_stands_below(migrated: "Shop", doctor: str) -> None:
    migrated.placed()
    problem, cure, *_ = migrated.type(doctor, code=3).stdout.splitlines()
    assert problem.startswith("✗ events are relayed     no relay has ever run here, and 1 event waits")
    assert cure == f"{'':25}run: pillarbox relay run --database sqlite:///shop.db --broker sqlite:///stream.db"
    assert migrated.received() == []


def test_the_topics_of_the_settings_are_asked_about(migrated: "Shop", doctor: str) -> None:
    (migrated.directory / "pillarbox.toml").write_text(
        '[retention]\npublished = "1 day"\ninbox = "3 days"\n[topic.mails]\norder = "none"\n'
    )
    line, *_ = migrated.type(doctor, code=3).stdout.splitlines()
    assert line.startswith("✗ retention.inbox        the topic mails is kept for 7 days")


def test_what_needs_neither_database_nor_broker_is_found_without_them(shop: "Shop") -> None:
    command = "pillarbox doctor --set 'retention.archive=1 day' --set 'retention.inbox=7 days'"
    database, line, broker, fine = shop.type(command, code=3).stdout.splitlines()
    assert line.startswith("✗ retention.inbox  retention.inbox is 7 days, and the outbox keeps events for 8 days")
    assert database.startswith("✗ database         not looked at: none is set")
    assert broker.startswith("· broker           not looked at: none is set")
    assert fine == "✓ publish timeout"


def test_a_relay_that_would_not_start_is_a_row_beside_all_others(relayed: "Shop", doctor: str) -> None:
    late = "--set 'relay.publish_timeout=20 s'"
    problem, *others = relayed.type(f"{doctor} {late}", code=3).stdout.splitlines()
    assert problem.startswith("✗ publish timeout        relay.publish_timeout is 20 s, and relay.lease only 15 s: ")
    assert others == [line for line in FINE.splitlines() if line != "✓ publish timeout"]
    relay = f"pillarbox relay once --database {relayed.database} --broker sqlite:///new.db {late}"
    done = relayed.start(relay)
    _, refused = done.communicate(timeout=30)
    assert done.returncode in (1, 2)
    assert refused.startswith("pillarbox: relay.publish_timeout: 20 s must be below relay.lease, which is 15 s: ")
    assert not (relayed.directory / "new.db").exists()


def test_a_database_without_tables_is_a_problem_and_is_not_made(shop: "Shop") -> None:
    problem, cure, *_ = shop.type("pillarbox doctor --database sqlite:///new.db", code=3).stdout.splitlines()
    assert problem.startswith("✗ version of the tables  there is no database new.db yet: no relay starts")
    assert cure.strip() == "run: pillarbox migrate up --database sqlite:///new.db"
    assert not (shop.directory / "new.db").exists()


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--database mysql://me:hunter2@host/shop", "database: 'mysql://me:***@host/shop' is of no known kind"),
        ("--broker rabitmq://me:hunter2@host/", "broker: 'rabitmq://me:***@host/' is of no known kind"),
        ("--broker 'kafka://host?acks=1'", "kafka.acks: 1 is not safe: "),
        ("--broker 'rabbitmq://host?exchang=x'", "there is no option rabbitmq.exchang; did you mean exchange?"),
        ("--set relay.batch=many", "relay.batch (--set relay.batch): "),
        ("--config none.toml", "none.toml: cannot be read: "),
    ],
)
def test_settings_that_cannot_be_used_are_the_only_row_and_nothing_is_asked(
    migrated: "Shop", flags: str, words: str
) -> None:
    migrated.placed()
    doctor = f"pillarbox doctor --set database={migrated.database} --set broker={migrated.broker} {flags}"
    done = migrated.type(doctor, code=2)
    (row,) = done.stdout.splitlines()
    assert (row.startswith(f"✗ settings  {words}"), done.stderr) == (True, ""), row
    answer = migrated.json(f"{doctor} --json", code=2)
    assert (answer["healthy"], [finding["check"] for finding in answer["findings"]]) == (False, ["settings"])
    assert answer["findings"][0]["line"] == row.removeprefix("✗ settings  ")


def test_a_settings_file_that_is_wrong_is_a_row_with_the_place(shop: "Shop") -> None:
    (shop.directory / "pillarbox.toml").write_text('database = "sqlite:///shop.db"\n[relay\n')
    (row,) = shop.type("pillarbox doctor", code=2).stdout.splitlines()
    assert row.startswith("✗ settings  pillarbox.toml: line 2, column 7: ")
    (shop.directory / "pillarbox.toml").write_text('database = "sqlite:///shop.db"\n[relay]\nbach = 1\n')
    (row,) = shop.type("pillarbox doctor", code=2).stdout.splitlines()
    assert "the nearest known one is 'relay.batch'" in row


def test_without_a_topic_the_flag_is_named(migrated: "Shop", doctor: str) -> None:
    note, *_ = migrated.type(doctor).stdout.splitlines()
    assert note == "· topics                 no topic is known here: name those to ask about with --topic"


@pytest.mark.parametrize(
    ("file", "why"),
    [
        ("text.db", "text.db is not a SQLite database; name another file"),
        ("nodir/stream.db", "the directory nodir does not exist; create it, or name another file"),
        ("shop.db", "shop.db is a database, but not a broker's file; name a file of its own"),
    ],
)
def test_a_file_that_can_be_no_broker_is_a_problem_and_nothing_is_made(relayed: "Shop", file: str, why: str) -> None:
    (relayed.directory / "text.db").write_text("this is no database, whatever its name says\n" * 100)
    before = sorted(relayed.directory.iterdir())
    said = relayed.type(f"pillarbox doctor --database {relayed.database} --broker sqlite:///{file}", code=3).stdout
    assert said.startswith(f"✗ broker                 the broker cannot be asked: {why}; while it is away")
    assert "topics" not in said
    assert sorted(relayed.directory.iterdir()) == before

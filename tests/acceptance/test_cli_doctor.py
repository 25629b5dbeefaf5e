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
    (line,) = shop.type(command, code=3).stdout.splitlines()
    assert line.startswith("✗ retention.inbox  retention.inbox is 7 days, and the outbox keeps events for 8 days")


def test_a_database_without_tables_is_a_problem_and_is_not_made(shop: "Shop") -> None:
    problem, cure, *_ = shop.type("pillarbox doctor --database sqlite:///new.db", code=3).stdout.splitlines()
    assert problem.startswith("✗ version of the tables  there are none: no relay starts")
    assert cure.strip() == "run: pillarbox migrate up --database sqlite:///new.db"
    assert not (shop.directory / "new.db").exists()


def test_a_database_of_no_known_kind_is_refused(shop: "Shop") -> None:
    assert shop.type("pillarbox doctor --database mysql:///shop", code=2).stderr.count("\n") == 1


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

"""`pillarbox doctor`, through the real command."""

from typing import TYPE_CHECKING

import pytest

from pillarbox import Event

if TYPE_CHECKING:
    from tests.acceptance.conftest import Shop

FINE = "✓ nothing found: consumers remember what they have handled for 30 days, longer than anything can come again\n"


@pytest.fixture
def doctor(migrated: "Shop") -> str:
    return f"pillarbox doctor --database {migrated.database} --broker {migrated.broker}"


def test_all_is_well_with_the_defaults(migrated: "Shop", doctor: str) -> None:
    migrated.placed()
    done = migrated.type(doctor)
    assert (done.stdout, done.stderr) == (FINE, "")
    assert migrated.json(f"{doctor} --json") == {
        "healthy": True,
        "findings": [{"severity": "fine", "kind": "fine", "line": FINE[2:-1], "commands": []}],
    }


def test_a_problem_is_code_3(migrated: "Shop", doctor: str) -> None:
    migrated.placed()
    migrated.add(Event("Asked", {}, topic="questions"))
    short = f"{doctor} --set 'retention.inbox=3 days' --set 'retention.published=1 day'"
    orders, questions = migrated.type(short, code=3).stdout.splitlines()
    assert orders.startswith("✗ the topic order-events is kept for 7 days (by the embedded broker)")
    assert questions.startswith("✗ the topic questions is kept for 7 days")
    (named,) = migrated.type(f"{short} --topic mails", code=3).stdout.splitlines()
    assert named.startswith("✗ the topic mails is kept for 7 days")
    answer = migrated.json(f"{short} --topic mails --json", code=3)
    assert answer["healthy"] is False
    assert [finding["kind"] for finding in answer["findings"]] == ["forgets too soon"]


def test_the_topics_of_the_settings_are_asked_about(migrated: "Shop", doctor: str) -> None:
    (migrated.directory / "pillarbox.toml").write_text(
        '[retention]\npublished = "1 day"\ninbox = "3 days"\n[topic.mails]\norder = "none"\n'
    )
    (line,) = migrated.type(doctor, code=3).stdout.splitlines()
    assert line.startswith("✗ the topic mails is kept for 7 days")


def test_what_needs_no_broker_is_found_without_one(shop: "Shop") -> None:
    command = "pillarbox doctor --set 'retention.archive=1 day' --set 'retention.inbox=7 days'"
    (line,) = shop.type(command, code=3).stdout.splitlines()
    assert line.startswith("✗ retention.inbox is 7 days, and the outbox keeps events for 8 days")


def test_without_a_topic_the_flag_is_named(migrated: "Shop", doctor: str) -> None:
    assert migrated.type(doctor).stdout == "· no topic is known here: name those to ask about with --topic\n"

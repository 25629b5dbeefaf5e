"""Whether consumers remember what they have handled for as long as it can come again."""

from collections.abc import Iterator
from datetime import timedelta

from pillarbox.admin.doctor.finding import Checks, Facts, Trouble
from pillarbox.settings.durations import write_duration


def _memory(facts: Facts) -> Iterator[Trouble]:
    memory = facts.settings.retention.inbox
    if memory is not None:
        yield from _outlived_by_the_outbox(memory, facts)
        yield from _outlived_by_the_broker(memory, facts)


def _outlived_by_the_outbox(memory: timedelta, facts: Facts) -> Iterator[Trouble]:
    """Compare what consumers remember with how far back a replay reaches."""
    kept = facts.settings.retention
    reach = None if kept.published is None or kept.archive is None else kept.published + kept.archive
    if reach is None or reach > memory:
        line = (
            f"retention.inbox is {_long(memory)}, and the outbox keeps events for {_long(reach)}"
            " (retention.published and retention.archive): `pillarbox replay` can bring one back that its consumer has"
            f" forgotten, and it would be handled a second time; {_cure(reach)}"
        )
        yield Trouble("problem", line)


def _outlived_by_the_broker(memory: timedelta, facts: Facts) -> Iterator[Trouble]:
    """Compare what consumers remember with how long the broker keeps messages."""
    for kept in facts.kept or ():
        begins_anew = "a consumer whose place is reset or lost would handle a second time what it has forgotten"
        if kept.age is None:
            line = (
                f"the topic {kept.topic} is kept without limit of age (by {kept.by}), and retention.inbox is"
                f" {_long(memory)}: {begins_anew}; give the topic a limit, or {_cure(None)}"
            )
            yield Trouble("note", line)
        elif kept.age > memory:
            line = (
                f"the topic {kept.topic} is kept for {_long(kept.age)} (by {kept.by}), and retention.inbox is only"
                f" {_long(memory)}: {begins_anew}; {_cure(kept.age)}"
            )
            yield Trouble("problem", line)


def _cure(needed: timedelta | None) -> str:
    how_long = '"forever"' if needed is None else f'"{_long(needed)}" or longer'
    return f"set retention.inbox to {how_long} where the consumers are"


def _long(duration: timedelta | None) -> str:
    return "ever" if duration is None else write_duration(duration) if duration else "no time"


CHECKS: Checks = {"retention.inbox": _memory}

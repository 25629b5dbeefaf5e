"""Doctor: what may go wrong some day, as values. Pure: what is known of settings and broker in, findings out.

Each check is a function of the facts, in CHECKS; a new one is a function, a line there, and its tests.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta

from pillarbox.admin.diagnosis import Finding
from pillarbox.errors import BrokerUnavailable
from pillarbox.ports import Keeping, Kept
from pillarbox.settings import Settings
from pillarbox.settings.durations import write_duration


@dataclass(frozen=True, slots=True)
class Facts:
    """What the checks know."""

    settings: Settings
    topics: Sequence[str] = ()
    """Those that the broker was asked about."""
    kept: Sequence[Kept] | None = None
    """How long it keeps those of them that it has; None if it was not asked, or keeps nothing that was had."""
    away: str | None = None
    """Why the broker could not be asked."""


async def gather(settings: Settings, topics: Sequence[str], keeping: Keeping | None) -> Facts:
    """Ask the broker what the checks want to know; one that is away is a fact too."""
    try:
        return Facts(settings, topics, await keeping(topics) if keeping is not None else None)
    except BrokerUnavailable as error:
        return Facts(settings, topics, away=str(error))


def examine(facts: Facts) -> Sequence[Finding]:
    """Say what may go wrong, problems first; one finding that all is well if there is nothing."""
    found = [finding for check in CHECKS for finding in check(facts)]
    return sorted(found, key=lambda finding: finding.severity != "problem") or [_fine(facts)]


def _broker_away(facts: Facts) -> Iterator[Finding]:
    if facts.away is not None:
        yield Finding("problem", "broker away", f"the broker cannot be asked: {facts.away}")


def _unknown_topics(facts: Facts) -> Iterator[Finding]:
    """Name the topics that the broker does not have; or say that it was asked about none."""
    if facts.kept is not None:
        if not facts.topics:
            yield Finding("note", "topic unknown", "no topic is known here: name those to ask about with --topic")
        known = {kept.topic for kept in facts.kept}
        for topic in facts.topics:
            if topic not in known:
                line = f"the broker has no topic {topic}, so nothing is known of it; is its name right?"
                yield Finding("note", "topic unknown", line)


def _outlived_by_the_outbox(facts: Facts) -> Iterator[Finding]:
    """Compare what consumers remember with how far back a replay reaches."""
    kept = facts.settings.retention
    if kept.inbox is None:
        return
    reach = None if kept.published is None or kept.archive is None else kept.published + kept.archive
    if reach is None or reach > kept.inbox:
        line = (
            f"retention.inbox is {_long(kept.inbox)}, and the outbox keeps events for {_long(reach)}"
            " (retention.published and retention.archive): `pillarbox replay` can bring one back that its consumer has"
            f" forgotten, and it would be handled a second time; {_cure(reach)}"
        )
        yield Finding("problem", "forgets too soon", line)


def _outlived_by_the_broker(facts: Facts) -> Iterator[Finding]:
    """Compare what consumers remember with how long the broker keeps messages."""
    memory = facts.settings.retention.inbox
    if memory is None:
        return
    for kept in facts.kept or ():
        begins_anew = "a consumer whose place is reset or lost would handle a second time what it has forgotten"
        if kept.age is None:
            line = (
                f"the topic {kept.topic} is kept without limit of age (by {kept.by}), and retention.inbox is"
                f" {_long(memory)}: {begins_anew}; give the topic a limit, or {_cure(None)}"
            )
            yield Finding("note", "forgets too soon", line)
        elif kept.age > memory:
            line = (
                f"the topic {kept.topic} is kept for {_long(kept.age)} (by {kept.by}), and retention.inbox is only"
                f" {_long(memory)}: {begins_anew}; {_cure(kept.age)}"
            )
            yield Finding("problem", "forgets too soon", line)


def _cure(needed: timedelta | None) -> str:
    how_long = '"forever"' if needed is None else f'"{_long(needed)}" or longer'
    return f"set retention.inbox to {how_long} where the consumers are"


def _long(duration: timedelta | None) -> str:
    return "ever" if duration is None else write_duration(duration) if duration else "no time"


def _fine(facts: Facts) -> Finding:
    memory = facts.settings.retention.inbox
    remember = "for ever" if memory is None else f"for {_long(memory)}"
    asked = "longer than anything can come again" if facts.kept is not None else "longer than a replay reaches back"
    return Finding("fine", "fine", f"nothing found: consumers remember what they have handled {remember}, {asked}")


CHECKS: Iterable[Callable[[Facts], Iterator[Finding]]] = (
    _broker_away,
    _outlived_by_the_outbox,
    _outlived_by_the_broker,
    _unknown_topics,
)

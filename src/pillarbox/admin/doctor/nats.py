"""How the streams of NATS keep what they have."""

from collections.abc import Iterable, Iterator

from pillarbox.admin.doctor.finding import Checks, Facts, Trouble
from pillarbox.admin.wording import sized
from pillarbox.core.insert import MAX_PAYLOAD
from pillarbox.facts import NatsFacts, NatsStream
from pillarbox.settings.durations import write_duration

OLDEST = (2, 11)


def _streams(facts: Facts) -> Iterable[NatsStream]:
    """Give each stream once, whatever topics it takes."""
    assert isinstance(facts.broker, NatsFacts)
    return {stream.name: stream for stream in facts.broker.streams}.values()


def _version(facts: Facts) -> Iterator[Trouble]:
    assert isinstance(facts.broker, NatsFacts)
    if (version := facts.broker.version) is not None and version < OLDEST:
        line = f"NATS {version[0]}.{version[1]} is too old: consumers need {OLDEST[0]}.{OLDEST[1]} or later"
        yield Trouble("note", line)


def _storage(facts: Facts) -> Iterator[Trouble]:
    for stream in _streams(facts):
        if stream.storage != "file":
            line = (
                f"the stream {stream.name} keeps its messages in memory: after a restart they are gone, so no relay"
                " publishes to it unless nats.unsafe is set; make it anew with file storage"
            )
            yield Trouble("problem", line)
        if not stream.acknowledges:
            line = f"the stream {stream.name} acknowledges nothing (no_ack): no event ever counts as published"
            yield Trouble("problem", line, (f"nats stream edit {stream.name} --ack",))


def _discard(facts: Facts) -> Iterator[Trouble]:
    for stream in _streams(facts):
        if stream.discard == "old" and stream.bounded:
            line = (
                f"the stream {stream.name} is bounded, and when it is full it drops its oldest messages (discard old),"
                " whether consumers have had them or not; let it refuse new ones"
            )
            yield Trouble("problem", line, (f"nats stream edit {stream.name} --discard new",))


def _duplicate_window(facts: Facts) -> Iterator[Trouble]:
    relay = facts.settings.relay
    needed = relay.lease + relay.publish_timeout
    for stream in _streams(facts):
        if stream.duplicate_window < needed:
            line = (
                f"the stream {stream.name} recognises copies for {write_duration(stream.duplicate_window)} only"
                f" (duplicate_window), and a relay that takes over from a dead one may send them"
                f" {write_duration(needed)} later (relay.lease and relay.publish_timeout): they are stored twice, and"
                " only an inbox recognises them; lengthen it, better to an hour"
            )
            yield Trouble("note", line, (f"nats stream edit {stream.name} --dupe-window 1h",))


def _replicas(facts: Facts) -> Iterator[Trouble]:
    for stream in _streams(facts):
        if stream.clustered and stream.replicas == 1:
            line = (
                f"the stream {stream.name} has no second replica, though there is a cluster: with the disk of its"
                " server all its messages are gone, and while that server is away nothing is published; give it three"
            )
            yield Trouble("problem", line, (f"nats stream edit {stream.name} --replicas 3",))


def _sizes(facts: Facts) -> Iterator[Trouble]:
    for stream in _streams(facts):
        if stream.largest < MAX_PAYLOAD:
            line = (
                f"the stream {stream.name} takes messages of at most {sized(stream.largest)} (its max_msg_size, or the"
                f" server's max_payload), and an application may add events of {sized(MAX_PAYLOAD)} unless its Outbox"
                " has a smaller max_payload: an event in between is dead in one attempt"
            )
            yield Trouble("note", line, (f"nats stream edit {stream.name} --max-msg-size -1",))


CHECKS: Checks = {
    "version of the broker": _version,
    "streams": _storage,
    "discard": _discard,
    "duplicate window": _duplicate_window,
    "replicas": _replicas,
    "size of messages": _sizes,
}

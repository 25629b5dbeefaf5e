"""How a Redis keeps what it has."""

from collections.abc import Iterator

from pillarbox.admin.doctor.finding import Checks, Facts, Trouble
from pillarbox.admin.wording import counted
from pillarbox.facts import RedisFacts

OLDEST = (7, 0)


def _of(facts: Facts) -> RedisFacts:
    assert isinstance(facts.broker, RedisFacts)
    return facts.broker


def _version(facts: Facts) -> Iterator[Trouble]:
    if (version := _of(facts).version) is not None and version < OLDEST:
        line = f"Redis {version[0]}.{version[1]} is too old: {OLDEST[0]}.{OLDEST[1]} or later is needed"
        yield Trouble("problem", line)


def _role(facts: Facts) -> Iterator[Trouble]:
    if _of(facts).replica:
        line = (
            "this Redis is a replica: it takes no event (READONLY), so all of them wait in the outbox; name the primary"
            " in the broker's URL, or an address that leads to it"
        )
        yield Trouble("problem", line)


def _persistence(facts: Facts) -> Iterator[Trouble]:
    redis = _of(facts)
    if redis.appendonly is None or redis.appendfsync is None:
        line = "Redis does not say how it keeps what it has (CONFIG GET is refused); ask who runs it"
        if redis.durable and redis.waitaof is False:
            line += ": it has no WAITAOF, so redis.durable waits for nothing"
        yield Trouble("note", line)
    elif redis.appendonly != "yes":
        line = (
            "Redis keeps no append-only file: when it restarts, everything published since its last snapshot is gone,"
            " and nobody notices; let it keep one, and write it down with CONFIG REWRITE"
        )
        if redis.durable and redis.waitaof is False:
            line += "; redis.durable does not help: this server has no WAITAOF, so the relay waits for nothing"
        yield Trouble("problem", line, ("redis-cli CONFIG SET appendonly yes",))
    elif redis.durable and redis.waitaof is not False:
        return
    elif redis.appendfsync == "no":
        line = (
            "Redis leaves it to the system when its file reaches the disk (appendfsync no): a power cut loses what was"
            f" published in the last half minute; let it write, {_or_wait(redis)}"
        )
        yield Trouble("problem", line, ("redis-cli CONFIG SET appendfsync always",))
    elif redis.appendfsync == "everysec":
        line = (
            "Redis writes to the disk once a second (appendfsync everysec): a power cut loses what was published in the"
            f" last two; write always, {_or_wait(redis)}"
        )
        yield Trouble("problem" if redis.durable else "note", line, ("redis-cli CONFIG SET appendfsync always",))


def _or_wait(redis: RedisFacts) -> str:
    """Say what else helps: to wait for the disk, where the server can be asked to."""
    if redis.waitaof is not False:
        return "or let the relay wait for the disk: redis.durable = true"
    needs = "run one that has WAITAOF, which Redis has from 7.2 on, and Valkey"
    if redis.durable:
        return f"or {needs}: without it redis.durable waits for nothing"
    return f"or {needs}, and let the relay wait for the disk: redis.durable = true"


def _eviction(facts: Facts) -> Iterator[Trouble]:
    redis = _of(facts)
    policy = redis.maxmemory_policy or ""
    if policy.startswith("allkeys"):
        now = "when its memory is full" if redis.maxmemory else "once maxmemory is set and reached"
        line = (
            f"Redis may evict whole streams {now} (maxmemory-policy is {policy}): published events would be gone before"
            " anybody has read them; refuse new ones instead, which then wait in the outbox"
        )
        yield Trouble(
            "problem" if redis.maxmemory else "note", line, ("redis-cli CONFIG SET maxmemory-policy noeviction",)
        )


def _replicas(facts: Facts) -> Iterator[Trouble]:
    redis = _of(facts)
    if redis.awaited and redis.waitaof is False:
        line = (
            "the relay is to wait for replicas (redis.replicas), and this server has no WAITAOF to wait with, which"
            " Redis has from 7.2 on, and Valkey: a failover loses what was published last; run a newer one"
        )
        yield Trouble("problem", line)
    elif redis.replicas < redis.awaited:
        line = (
            f"the relay waits for {counted(redis.awaited, 'replica')} to have each event on disk (redis.replicas), and"
            f" there {'is' if redis.replicas == 1 else 'are'} {redis.replicas}: nothing counts as published;"
            " start them, or ask for fewer"
        )
        yield Trouble("problem", line)
    elif redis.replicas and not redis.awaited:
        line = (
            f"Redis is copied to {counted(redis.replicas, 'replica')} without anybody waiting for it: a failover loses"
            " what was published last; redis.durable = true and redis.replicas = 1 make that less likely"
            f"{', on a server with WAITAOF (Redis 7.2 or Valkey)' if redis.waitaof is False else ''}"
        )
        yield Trouble("note", line)


def _trimming(facts: Facts) -> Iterator[Trouble]:
    if (maxlen := _of(facts).maxlen) is not None:
        line = (
            f"the relay trims streams to a length of {maxlen:,} (redis.maxlen), whether consumers"
            " have had them or not; trim what all of them have read instead"
        )
        yield Trouble("note", line)


CHECKS: Checks = {
    "version of the broker": _version,
    "role": _role,
    "replicas": _replicas,
    "persistence": _persistence,
    "eviction": _eviction,
    "trimming": _trimming,
}

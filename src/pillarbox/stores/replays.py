"""What a replay selects, as the text that its row keeps."""

import json
from dataclasses import asdict, replace
from datetime import datetime
from typing import Any

from pillarbox.ports import Query, Replay

BATCH = 1_000
"""So many events go in one transaction: what each carries is copied."""
WALK = 20_000
"""So many rows are looked at in one transaction, before the next one goes on."""
_TIMES = ("since", "until")
_LISTS = ("ids", "status", "aggregate")


def write_query(query: Query) -> str:
    """Write a query down.

    >>> read_query(write_query(Query(type="A", aggregate=("order", "7")))) == Query(type="A", aggregate=("order", "7"))
    True
    """
    unset = asdict(Query())
    fields = {name: value for name, value in asdict(query).items() if value != unset[name]}
    return json.dumps(fields, default=datetime.isoformat)


def read_query(text: str) -> Query:
    """Read a query that was written down."""
    fields: dict[str, Any] = json.loads(text)
    times = {name: datetime.fromisoformat(fields[name]) for name in _TIMES if name in fields}
    lists = {name: tuple(fields[name]) for name in _LISTS if name in fields}
    return Query(**{**fields, **times, **lists})


def selects(query: Query) -> bool:
    """Tell whether a query can mean what was published."""
    return query.side == "outbox" and (not query.status or "published" in query.status)


def next_batch(replay: Replay, bounds: list[int | None]) -> Query:
    """Give the query for the next batch; the bounds are ids so many rows further on, in the log and in the archive."""
    query = replay.query
    indexed = bool(query.ids or query.aggregate)
    upto = replay.upto if indexed else min([replay.upto, *(bound for bound in bounds if bound is not None)])
    left = max(0, query.limit - replay.events)
    return replace(
        query, status=("published",), after=replay.place, upto=upto, newest_first=False, limit=min(BATCH, left)
    )


def place_after(replay: Replay, batch: Query, chosen: list[int]) -> int:
    """Say up to where a replay is done once these are handed over."""
    if len(chosen) + replay.events >= replay.query.limit:
        return replay.upto
    assert batch.upto is not None
    return chosen[-1] if len(chosen) == batch.limit else batch.upto

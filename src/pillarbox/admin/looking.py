"""Looking events up for people: as far as an index leads, and else in a bounded stretch of the log."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import NamedTuple

from pillarbox.ports import Query, Record, Records, Status

STRETCH = 50_000
"""So many events are looked at where no index leads: writers would pay for more of them."""
LAST = 2**63 - 1
"""The last position that there can be."""
SKEW = timedelta(minutes=1)
"""Events are added in the order of their times, give or take so much: transactions overlap, and clocks are set."""
IN_THE_LOT: frozenset[Status] = frozenset(("retrying", "blocked", "delayed", "dead", "dropped"))


class Looked(NamedTuple):
    """What was found, and whether there may be more where nobody has looked."""

    records: Sequence[Record]
    may_be_more: bool


async def look_for(store: Records, query: Query) -> Looked:
    """Find events; if that could take a walk over the log, then in the stretch where it would begin."""
    if not _walks(query):
        return Looked(await store.find(query), False)
    begin = await _beginning(store, query)
    if begin is None:
        return Looked([], False)
    low, high = (begin - STRETCH, begin) if query.newest_first else (begin - 1, min(begin - 1 + STRETCH, LAST))
    records = await store.find(replace(query, after=low, upto=high))
    if len(records) >= query.limit:
        return Looked(records, False)
    further = Query(upto=low) if query.newest_first else Query(after=high)
    return Looked(records, await _goes_on(store, query, further))


async def stretches(store: Records, query: Query) -> AsyncIterator[Query]:
    """Cut a query into such that look at no more than a stretch of the log each, the oldest first. All of them together
    may well look at all of it; but no statement lasts so long that it is broken off, or holds vacuum back."""
    if not _is_loose(query):
        yield query
        return
    after = query.after
    while next := await store.find(Query(after=after, upto=query.upto, newest_first=False, limit=1)):
        begin = next[0].position  # not `after`: ids have gaps, and some are wide
        after = min(begin - 1 + STRETCH, LAST if query.upto is None else query.upto)
        yield replace(query, after=begin - 1, upto=after, newest_first=False)


def _walks(query: Query) -> bool:
    """Tell whether a query may have to walk over the whole log."""
    return _is_loose(query) and query.after is None and query.upto is None


def _is_loose(query: Query) -> bool:
    """Tell whether a query may have to walk over what it does not want."""
    if query.side == "inbox" or query.ids or query.aggregate:
        return False
    if query.status and IN_THE_LOT.issuperset(query.status):
        return False
    return any((query.status, query.type, query.topic, query.since, query.until, query.error))


async def _beginning(store: Records, query: Query) -> int | None:
    """Give the position where a query begins; None if there is nothing for it."""
    newest = query.newest_first
    pending = query.status if tuple(query.status) == ("pending",) and not newest else ()
    at_end = await store.find(Query(status=pending, newest_first=newest, limit=1))
    if not at_end:
        return None
    if newest and query.until is not None:
        return await last_added_by(store, _moved(query.until, SKEW))
    if not newest and query.since is not None:
        return max(at_end[0].position, await last_added_by(store, _moved(query.since, -SKEW)))
    return at_end[0].position


async def _goes_on(store: Records, query: Query, further: Query) -> bool:
    """Tell whether what lies further may be meant too."""
    next = await store.find(replace(further, newest_first=query.newest_first, limit=1))
    if not next:
        return False
    if query.newest_first:
        return query.since is None or next[0].created_at >= _moved(query.since, -SKEW)
    return query.until is None or next[0].created_at <= _moved(query.until, SKEW)


def _moved(at: datetime, by: timedelta) -> datetime:
    """Add to an instant, as far as there are any."""
    try:
        return at + by
    except OverflowError:
        return at


async def last_added_by(store: Records, at: datetime) -> int:
    """Give the position up to which events were added by then: found by halving, in some twenty looks. Ids have gaps
    and transactions overlap, so it is about right, and not more."""
    ends = [await store.find(Query(newest_first=newest, limit=1)) for newest in (False, True)]
    if not all(ends):
        return 0
    low, high = ends[0][0].position - 1, ends[1][0].position
    while low < high:
        middle = (low + high + 1) // 2
        [found] = await store.find(Query(after=middle - 1, newest_first=False, limit=1))
        if found.created_at <= at:
            low = middle
        else:
            high = middle - 1
    return low

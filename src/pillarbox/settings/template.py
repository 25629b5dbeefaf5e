"""The settings file that `pillarbox init` writes: every setting with its default and what it is for."""

import json

from pillarbox.settings.kinds import default_of, known_keys

MEANINGS = {
    "database": "where the outbox is",
    "broker": "where events go; sqlite: is the embedded one, stdout: prints",
    "outbox.schema": "the tables' schema, on databases that have schemas",
    "outbox.prefix": "what the tables' names begin with; Outbox(prefix=…) and Inbox(prefix=…) say the same",
    "relay.batch": "how many entries are read at once",
    "relay.idle_first": "the first wait when nothing is there; it doubles up to",
    "relay.idle_longest": "this one",
    "relay.lease": "a relay that dies is replaced after this long at the latest",
    "relay.publish_timeout": "how long the broker may take to answer; must be below the lease",
    "relay.retries": "tries after the first one; then the event is dead",
    "relay.backoff_first": "the wait before the first retry; it doubles up to",
    "relay.backoff_longest": "this one, ± 20 %",
    "retention.published": 'how long published events are kept; "none" deletes at once, "forever" never',
    "retention.archive": 'how long they stay in the archive after that; "none" is no archive',
    "retention.inbox": "how long a consumer remembers what it has handled",
    "inbox.concurrency": "how many events a consumer handles at the same time",
    "inbox.mode": '"handle": each event on arrival; "store": kept in the database first, handled after that',
    "inbox.unordered": "the broker does not keep the order: numbered events wait until those before them are there",
    "inbox.unhandled": 'types without a handler: "dead" letters; "ignore": passed over; "fail": the consumer stops',
    "inbox.hint": "a Redis (redis://, rediss://) that may save looking copies up in PostgreSQL; it may lose all it has",
    "health.listen": "where daemons serve /livez, /readyz, /startupz and /metrics over HTTP, such as 127.0.0.1:9464",
    "health.oldest_pending": "an event that waits longer is unhealthy",
    "health.canary": "how often a canary goes through outbox, broker and inbox; without one, it is degraded",
    "health.canary_topic": "the canary's topic; consumers that name it among their topics handle it by themselves",
}
_TOPIC = """
# What holds for one topic; without such a table, the values shown here.
# [topic."order-events"]
# order = "aggregate"          # aggregate, global, none
# when_dead = "block"          # a dead event blocks its aggregate; "skip" lets the rest go on
# format = "plain"             # plain, cloudevents, cloudevents-structured
# id = "ours"                  # where messages that are not ours say it: "header message-id", "body order.id", "key"
# type = "ours"                # as for id; or the same for all of them: "is OrderPlaced"
# key = "ours"                 # as for id: what is kept in order
"""


def template(database: str, broker: str) -> str:
    """Write the file; what has a default stands in it as a comment."""
    lines = ["# Pillarbox. A flag wins over PILLARBOX_… in the environment, that over this file."]
    table = ""
    for key in known_keys():
        above, _, name = key.rpartition(".")
        if above != table:
            lines += ["", f"[{above}]"]
            table = above
        value = {"database": database, "broker": broker}.get(key, default_of(key))
        lines.append(f"{'# ' if above else ''}{name} = {json.dumps(value)}".ljust(34) + f" # {MEANINGS[key]}")
    return "\n".join(lines) + "\n" + _TOPIC

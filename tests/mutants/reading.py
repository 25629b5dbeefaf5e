"""Rules of the stores: what is read, on whose word, and what is settled, parked and pruned."""

from tests.mutants.mutant import Mutant

SQL = "src/pillarbox/stores/postgres/schema/0001_reading.sql"
COMMITS = "tests/integration/test_postgres_losses_commits.py::test_nothing_is_lost_or_out_of_order"
TICKS = "tests/integration/test_postgres_losses_ticks.py::test_the_rule_holds"
LANES = "tests/integration/test_postgres_losses_lanes.py::test_the_rule_holds"
CAREFUL = "tests/integration/test_postgres_losses_careful.py::"

READING = (
    Mutant(
        "id > last",
        "an event whose transaction commits late has an id below the cursor: nobody ever reads it",
        "src/pillarbox/core/snapshot.py",
        {"        return sorted(seen.in_progress) + list(range(seen.xmax, self.before.x + 1))": "        return []"},
        (COMMITS + "[a_late_commit_below_a_higher_id_comes_out-15]",),
    ),
    Mutant(
        "xid >= xmax with a bound on ids",
        "a transaction in progress above xmax stands in no list: its events, below the bound, are lost",
        "src/pillarbox/core/snapshot.py",
        {
            "        return sorted(seen.in_progress) + list(range(seen.xmax, self.before.x + 1))": (
                "        return sorted(seen.in_progress)"
            )
        },
        (COMMITS + "[a_transaction_above_xmax_with_an_id_below_what_was_seen_comes_out-15]",),
    ),
    Mutant(
        "order by created_at",
        "events whose clocks differ come out of order, and a batch that ends between them passes one over",
        SQL,
        {
            "ORDER BY o.id LIMIT _rows": "ORDER BY o.created_at, o.id LIMIT _rows",
            "ORDER BY id LIMIT _rows": "ORDER BY created_at, id LIMIT _rows",
        },
        (COMMITS + "[what_stands_in_created_at_orders_nothing-15]",),
    ),
    Mutant(
        "order by transaction",
        "a transaction that began first and changed an aggregate last comes first",
        SQL,
        {
            "ORDER BY o.id LIMIT _rows": "ORDER BY o.xid, o.id LIMIT _rows",
            "ORDER BY id LIMIT _rows": "ORDER BY xid, id LIMIT _rows",
        },
        (COMMITS + "[a_transaction_that_began_first_and_changed_an_aggregate_last_comes_last-15]",),
    ),
    Mutant(
        "read what the snapshot does not show",
        "what commits while a batch is read is published, and counts as unread: or is passed over by the next",
        SQL,
        {"pg_visible_in_snapshot(o.xid, _s2)": "true"},
        (COMMITS + "[what_commits_while_a_batch_is_read_waits_for_the_next-15]",),
    ),
    Mutant(
        "drop the fence",
        "who woke up after its lease settles what another one holds: events are passed over",
        SQL,
        {"l.lane = mine.lane AND l.epoch = mine.epoch": "l.lane = mine.lane"},
        (
            LANES + "[two_relays_under_one_name_fence_each_other-15]",
            TICKS + "[a_zombie_that_wakes_up_to_settle_writes_nothing-15]",
        ),
    ),
    Mutant(
        "use a snapshot before its tick is durable",
        "a crash takes back what was published, and its numbers are given out anew: new events count as settled",
        SQL,
        {
            "            CASE current_setting('synchronous_commit') WHEN 'remote_apply' THEN 'remote_apply' ELSE 'on'"
            " END, true)),": "            current_setting('synchronous_commit'), true)),"
        },
        (TICKS + "[a_tick_is_durable_although_the_role_is_not-15]",),
    ),
    Mutant(
        "a tick in any transaction",
        "a transaction that had an id before is below what its snapshot names: after a crash that id comes twice",
        SQL,
        {
            "WHERE header.words -> 'held' = 'true' AND pg_current_xact_id_if_assigned() IS NULL": (
                "WHERE header.words -> 'held' = 'true'"
            )
        },
        (TICKS + "[a_tick_in_a_transaction_that_had_an_id_before_is_refused-15]",),
    ),
    Mutant(
        "the tick's token unchecked",
        "after a failover another tick has the same number: memory that rests on a lost one is believed",
        SQL,
        {"t.n = came.n AND t.token = came.token": "t.n = came.n"},
        (TICKS + "[another_tick_under_the_same_number_is_not_taken_for_ours-15]",),
    ),
    Mutant(
        "the cluster unchecked",
        "transactions of another cluster are taken for ours: what is new there counts as settled",
        SQL,
        {"       AND {p}cluster() = _cluster;": ";"},
        (TICKS + "[a_relay_in_mid_batch_stops_where_the_server_is_another_cluster-15]",),
    ),
    Mutant(
        "deaf to a warning on the commit",
        "a tick that no standby has confirmed is relied on, and is gone after a failover",
        "src/pillarbox/stores/postgres/connection.py",
        {"        if self._warnings:\n            raise LaneLost": "        if False:\n            raise LaneLost"},
        (TICKS + "[a_warning_on_a_tick_publishes_nothing-15]",),
    ),
    Mutant(
        "merge a detour while its topic is paused",
        "the main line reads the topic from where it is by now: what the pause holds is passed over",
        "src/pillarbox/stores/postgres/route.py",
        {
            "sorted(way.around - self.paused - frozenset(self._whole))": "sorted(way.around - frozenset(self._whole))",
            "of.topic == topic and of.finished and of.mark == way.mark]": "of.topic == topic]",
        },
        (
            "tests/contracts/test_store_postgres.py::test_the_postgres_store"
            "[test_a_topic_goes_on_from_where_it_was_paused-15]",
        ),
    ),
    Mutant(
        "the parked set not refreshed",
        "what a person has retried or dropped is not heard of: its line stands still, or a follower goes first",
        "src/pillarbox/stores/postgres/parking.py",
        {"        if version != self._version:": "        if version is Ellipsis:"},
        (
            "tests/integration/test_postgres_losses_lot.py::test_the_rule_holds"
            "[a_retry_by_hand_is_noticed_at_the_next_read-15]",
        ),
    ),
    Mutant(
        "convict at the first death",
        "an innocent event that was about to be sent when its relay was killed is parked as dead",
        "src/pillarbox/stores/postgres/careful.py",
        {"lane.suspected >= 2": "lane.suspected >= 1"},
        (CAREFUL + "test_ten_random_kills_park_nothing",),
    ),
    Mutant(
        "no careful mode",
        "an event that kills its relay kills all of them, and nothing of its lane ever goes",
        "src/pillarbox/stores/postgres/careful.py",
        {"if lane.crashes >= CRASHES}": "if lane.crashes >= 1000 * CRASHES}"},
        (CAREFUL + "test_the_rule_holds[an_event_that_kills_every_relay_is_parked_and_the_others_flow-15]",),
    ),
    Mutant(
        "parked twice",
        "after a lost answer an event stands in the parking lot twice, and is published twice out of it",
        SQL,
        {
            "    WHERE NOT EXISTS (SELECT 1 FROM {p}parked there WHERE there.position = k.position": (
                "    WHERE true OR NOT EXISTS (SELECT 1 FROM {p}parked there WHERE there.position = k.position"
            )
        },
        (
            "tests/integration/test_postgres_losses_settling.py::test_the_rule_holds"
            "[what_is_parked_already_is_not_parked_twice_by_an_older_position-15]",
        ),
    ),
    Mutant(
        "prune by age alone",
        "a transaction that was open for long commits rows that are old already: they go before anybody reads them",
        "src/pillarbox/stores/sqlite/retention.py",
        {"outbox o WHERE id <= :horizon AND NOT EXISTS": "outbox o WHERE o.created_at <= :old AND NOT EXISTS"},
        ("tests/contracts/test_store_sqlite.py::test_the_sqlite_store[test_what_is_pending_is_never_deleted]",),
    ),
    Mutant(
        "prune what is parked",
        "an event that waits for its retry is gone from the log that it is copied from",
        "src/pillarbox/stores/postgres/schema/0001_retention.sql",
        {
            "WHERE k.position = o.id AND (k.settled_at IS NULL OR k.settled_at > _old))": (
                "WHERE k.position = o.id AND k.settled_at > _old)"
            )
        },
        ("tests/integration/test_postgres_retention.py::test_what_stands_in_the_parking_lot_is_kept",),
    ),
    Mutant(
        "drop the fence on SQLite",
        "who woke up after its lease settles what another one holds: events are passed over",
        "src/pillarbox/stores/sqlite/lanes.py",
        {"        if epoch != self._epoch:": "        if epoch is Ellipsis:"},
        (
            "tests/contracts/test_store_sqlite.py::test_the_sqlite_store"
            "[test_a_former_holder_cannot_settle_and_changes_nothing]",
        ),
    ),
)

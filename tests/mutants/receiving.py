"""Rules of the doors and of the receiving side: the inbox, its consumer and its subscribers."""

from tests.mutants.mutant import Mutant

CONSUMER = "tests/unit/test_consumer.py::"

RECEIVING = (
    Mutant(
        "publish while autocommit is on",
        "an event is there although the change that it tells of is rolled back",
        "src/pillarbox/psycopg/connection.py",
        {"    if connection.autocommit and not connection.closed": "    if False and not connection.closed"},
        ("tests/contracts/test_door_psycopg.py::test_psycopg[test_autocommit_is_refused-SyncBench]",),
    ),
    Mutant(
        "see nothing newer than the transaction",
        "under REPEATABLE READ an event that is parked as dead is handled by a copy, behind later ones",
        "src/pillarbox/stores/postgres/schema/0001_receiving.sql",
        {
            "    IF current_setting('transaction_isolation') = 'repeatable read' THEN\n"
            "        PERFORM {p}refuse_unseen(_consumer, ARRAY[_event_id]);\n"
            "    END IF;\n": ""
        },
        (
            "tests/integration/test_inbox_isolation.py::test_what_was_parked_after_a_copy_had_begun_is_not_handled"
            "[psycopg-alone-REPEATABLE_READ]",
        ),
    ),
    Mutant(
        "acknowledge before the commit",
        "what was delivered and not committed does not come again: its effects are lost",
        "src/pillarbox/inbox/consumer.py",
        {
            "        self._fetch_at = now + FETCH_EVERY\n": (
                "        self._fetch_at = now + FETCH_EVERY\n        await self._subscriber.acknowledge(deliveries)\n"
            )
        },
        (CONSUMER + "test_nothing_is_acknowledged_before_its_commit",),
    ),
    Mutant(
        "acknowledge before it is stored",
        "what could not be stored does not come again",
        "src/pillarbox/inbox/consumer.py",
        {
            "books(store)\n            except StoreUnavailable:\n                return\n": (
                "books(store)\n            except StoreUnavailable:\n                pass\n"
            )
        },
        ("tests/unit/test_consumer_store.py::test_while_it_cannot_be_stored_nothing_is_acknowledged",),
    ),
    Mutant(
        "count attempts after the handler",
        "an event that kills its process is never counted: it kills every process, for ever",
        "src/pillarbox/inbox/handling.py",
        {
            "        if received.suspicious and not received.counted and self._handler(received):\n": (
                "        if False:\n"
            ),
            "        self._tell_committed(received, reception)\n        return reception\n": (
                "        self._tell_committed(received, reception)\n"
                "        if received.suspicious:\n"
                "            await self._perform(worker, lot.suspect(self._inbox.texts, received, self._clock.now()))\n"
                "        return reception\n"
            ),
        },
        ("tests/unit/test_consumer_suspects.py::test_each_death_is_counted_before_the_handler",),
    ),
    Mutant(
        "take an IntegrityError for a copy",
        "an event whose handler violates a constraint of its own counts as handled",
        "src/pillarbox/inbox/handling.py",
        {
            "        policy, topic = self._rules.policy, received.delivery.topic\n": (
                "        policy, topic = self._rules.policy, received.delivery.topic\n"
                '        if "IntegrityError" in type(error.__cause__).__name__:\n'
                "            return PUBLISHED\n"
            )
        },
        ("tests/unit/test_consumer_failures.py::test_a_constraint_that_waits_for_the_commit_is_the_handlers_to_keep",),
    ),
    Mutant(
        "the number decides instead of the id",
        "after its producer lost its counter, new events have old numbers, and are dropped as copies",
        "src/pillarbox/inbox/numbers.py",
        {"    if remembered is not None and _is_older(received.key, remembered):": "    if number <= last:"},
        ("tests/unit/test_consumer_numbers.py::test_a_counter_that_stepped_back_is_a_conflict_that_is_kept",),
    ),
    Mutant(
        "a gap is passed over",
        "what comes behind a missing number is applied without it",
        "src/pillarbox/inbox/statements.py",
        {"WHERE it.last = excluded.last - 1 RETURNING 1": "WHERE it.last < excluded.last RETURNING 1"},
        (
            "tests/unit/test_consumer_numbers.py::test_a_missing_number_stops_its_aggregate_and_nothing_later_is_applied",
        ),
    ),
    Mutant(
        "a replay's id is no part of the key",
        "what is sent again on purpose, for handlers that ask for it, is a copy and has no effect",
        "src/pillarbox/inbox/received.py",
        {' + (f"/{again}" if again else "")': ""},
        (CONSUMER + "test_a_replay_is_a_copy_unless_its_handler_asks_for_it",),
    ),
    Mutant(
        "a line goes on behind a parked one",
        "what comes after a failed event of its aggregate is applied before it",
        "src/pillarbox/inbox/statements.py",
        {
            """f" AND NOT EXISTS ({_BLOCKED_LINE.replace('{line}', '$3')}) ON""": '" ON',
        },
        ("tests/unit/test_consumer_failures.py::test_a_line_that_another_process_blocked_meanwhile_is_respected",),
    ),
    Mutant(
        "commit offsets of a partition that was revoked",
        "who was taken for dead moves the position over what its successor has not handled",
        "src/pillarbox/brokers/sqlite/member.py",
        {
            "SET position = ?, busy = ? WHERE consumer = ? AND topic = ? AND partition = ? AND epoch = ?": (
                "SET position = ?, busy = ? WHERE consumer = ? AND topic = ? AND partition = ? AND ? <> ''"
            )
        },
        (
            "tests/contracts/test_subscriber_sqlite.py::test_the_embedded_subscriber_keeps_the_rule"
            "[test_acknowledging_what_another_has_taken_over_moves_nothing]",
        ),
    ),
    Mutant(
        "note the hint before the commit",
        "what was rolled back is known as handled: its next delivery has no effect",
        "src/pillarbox/inbox/hint.py",
        {
            "        for received in asked:\n            received.where = where\n": (
                "        await self._ask(self._hint.note(where, [received.key for received in asked]))\n"
                "        for received in asked:\n            received.where = where\n"
            )
        },
        ("tests/integration/test_inbox_hint.py::test_what_was_rolled_back_is_not_noted_and_is_handled[redis]",),
    ),
)

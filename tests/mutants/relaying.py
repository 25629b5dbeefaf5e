"""Rules of the relay: the pump, its window, its policy and its publishers."""

from tests.mutants.mutant import Mutant

WINDOW, RELAY = "tests/unit/test_window.py::", "tests/unit/test_relay.py::"

RELAYING = (
    Mutant(
        "settle before the acknowledgement",
        "what was handed over and never arrived is lost when the relay dies",
        "src/pillarbox/core/window.py",
        {
            "            slot.verdict = None  # one that failed behind an untouched one goes again\n": (
                "            slot.verdict = Published()\n"
            )
        },
        (WINDOW + "test_a_verdict_waits_until_everything_before_it_in_the_log_has_one",),
    ),
    Mutant(
        "pass over what is in flight",
        "the position moves over an event whose answer is still to come: a crash then loses it",
        "src/pillarbox/core/window.py",
        {
            "            if outcome is None:\n                break\n            log.popleft()": (
                "            if outcome is None and not slot.flying:\n                break\n"
                "            outcome = outcome or Published()\n            log.popleft()"
            )
        },
        (WINDOW + "test_a_verdict_waits_until_everything_before_it_in_the_log_has_one",),
    ),
    Mutant(
        "followers pass a head that failed",
        "what comes after a failed event of its aggregate overtakes it",
        "src/pillarbox/core/window.py",
        {"        blocking.add(line)\n": ""},
        (WINDOW + "test_a_failed_item_holds_back_its_line_and_nobody_else",),
    ),
    Mutant(
        "send after the lease",
        "a relay that slept sends what another one, which holds its lanes by now, may have gone past",
        "src/pillarbox/relay/pump.py",
        {
            "            self._fence()\n            self._hooks.reach(Moment.BEFORE_SEND": (
                "            self._hooks.reach(Moment.BEFORE_SEND"
            )
        },
        (RELAY + "test_a_relay_sends_nothing_once_its_lease_has_run_out",),
    ),
    Mutant(
        "remember after a loss of lanes",
        "what was read under an old epoch is sent and settled under a new one",
        "src/pillarbox/relay/relay.py",
        {"                pump.forget()\n": ""},
        (RELAY + "test_a_relay_that_lost_its_lanes_forgets_everything_and_begins_again",),
    ),
    Mutant(
        "count while the broker is away",
        "an outage longer than the retries makes everything in it dead",
        "src/pillarbox/core/retry.py",
        {"        if isinstance(error, BrokerUnavailable):\n            return Untouched(text, brief)\n": ""},
        ("tests/unit/test_retry.py::test_a_broker_that_is_away_counts_nothing_however_long",),
    ),
    Mutant(
        "ignore basic.return",
        "RabbitMQ confirms what it could route to no queue: it counts as published and nobody has it",
        "src/pillarbox/brokers/rabbitmq/flight.py",
        {"        self._returned = tag\n        send,": "        self._returned = tag\n        return\n        send,"},
        ("tests/unit/test_rabbitmq_flight.py::test_what_was_returned_is_not_accepted_by_its_confirmation",),
    ),
    Mutant(
        "settle on Kafka without a delivery report",
        "what waits in the client's queue counts as published, and is gone with the process",
        "src/pillarbox/brokers/kafka/carrier.py",
        {
            "                handed += 1\n            except": (
                "                report(ticket, None, None)\n                handed += 1\n            except"
            )
        },
        ("tests/unit/test_kafka_carrier.py::test_nothing_is_stored_before_kafka_has_reported_it",),
    ),
    Mutant(
        "go on behind what Redis has refused",
        "a key's later messages are stored although an earlier one is refused: they overtake it",
        "src/pillarbox/brokers/redis/publisher.py",
        {"            elif order.line is None or order.line not in held:\n": "            elif order.message:\n"},
        ("tests/integration/test_redis.py::test_a_right_that_is_given_in_mid_batch_lets_nothing_overtake[redis]",),
    ),
    Mutant(
        "take any answer for a yes",
        "what an endpoint has refused, or could not store, counts as published",
        "src/pillarbox/brokers/webhook/answers.py",
        {"    if 200 <= status < 300:": "    if 200 <= status < 600:"},
        ("tests/unit/test_webhook_answers.py::test_what_is_tried_again",),
    ),
)

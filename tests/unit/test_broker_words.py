"""What brokers answer may repeat what was sent: logs have the brief, and an error that ends a relay no quotation."""

from redis import exceptions

from pillarbox.brokers.nats.answers import judge
from pillarbox.brokers.redis.options import Options
from pillarbox.brokers.redis.wire import meaning


def test_who_answers_in_the_place_of_a_stream_of_nats_may_have_answered_with_the_event() -> None:
    for answer in (b"got card 4111", b'{"stream": "others", "seq": 1, "said": "4111"}'):
        error = judge(answer, "orders")
        assert error is not None
        assert "4111" in str(error)
        assert error.brief
        assert "4111" not in error.brief


def test_redis_quotes_what_was_sent_to_a_command_that_it_does_not_know() -> None:
    said = exceptions.ResponseError("unknown command 'XADD', with args beginning with: 'orders' '*' 'body' '4111'")
    error = meaning(said, Options("localhost", 6379, 0))
    assert "unknown command 'XADD'" in str(error)
    assert "4111" not in str(error)

"""What JetStream's answer to one message means: accepted, away, refused for good, or try again."""

import json
from functools import lru_cache

from pillarbox.brokers.nats.connection import Msg
from pillarbox.errors import BrokerUnavailable, PublishError, PublishRejected

NO_RESPONDERS = "503"
STORE_FAILED = 10077
FULL = ("maximum messages exceeded", "maximum bytes exceeded", "maximum messages per subject exceeded")
REFUSED = frozenset((10053, 10054, 10097, 10109))
"""Without a name or not a subject of this stream; message too large for the stream; headers too large; sealed."""
AWAY = frozenset((10002, 10007, 10009, 10023, 10028, 10047, 10077, 10118, 10194))
"""Limits of the server or the account, no leader, offline, out of disk: it will take the message later."""
OTHER_STREAM = 10060


@lru_cache(maxsize=1024)
def acceptance(stream: str) -> bytes:
    """Give how a stream's acknowledgement begins; only the number follows, and whether it had the message already."""
    return f'{{"stream":{json.dumps(stream)}, "seq":'.encode()


def unclaimed(answer: Msg) -> bool:
    """Tell whether the server says that nobody took the message."""
    return not answer.data and (answer.headers or {}).get("Status") == NO_RESPONDERS


def sequence(data: bytes, stream: str) -> int:
    """Give the number under which a stream has stored a message that it accepted; 0 if it had it already."""
    if b'"duplicate"' in data:
        return 0
    number = (
        data[len(acceptance(stream)) :].partition(b",")[0].rstrip(b"}") if data.startswith(acceptance(stream)) else b""
    )
    return int(number if number.isdigit() else json.loads(data)["seq"])


def judge(data: bytes, stream: str) -> PublishError | None:
    """Judge an answer to a message that was meant for `stream`; None: it is stored there."""
    if data.startswith(acceptance(stream)) and b"error" not in data:
        return None
    try:
        answer = json.loads(data)
        if answer.get("stream") == stream and answer.get("seq", 0) > 0 and "error" not in answer:
            return None
        error = answer.get("error")
    except (ValueError, AttributeError, TypeError):
        return _answered("something that is no stream answered in its place", data[:80])
    if error is None:
        return _answered(f"another stream answered in place of {stream!r}", data[:200])
    return _refusal(stream, error.get("code", 0), error.get("err_code", 0), str(error.get("description")))


def _answered(what: str, data: bytes) -> PublishError:
    return PublishError(f"{what}: {data!r}", brief=what)  # whoever it was may have answered with what was sent


def _refusal(stream: str, status: int, code: int, words: str) -> PublishError:
    text = f"the stream {stream}: {words} (error {code})"
    if code in REFUSED or (code == STORE_FAILED and words in FULL):
        return PublishRejected(text)
    if code in AWAY or (status in (429, 503) and code != OTHER_STREAM):
        return BrokerUnavailable(text)
    return PublishError(text)

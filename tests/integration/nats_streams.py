"""What a stream of NATS holds, read through JetStream's own interface."""

import base64
import json

import nats

from pillarbox.brokers.nats.wire import unpack
from pillarbox.core.message import Message


async def stored_in(url: str, stream: str) -> list[Message]:
    """Read all messages of a stream, in its order."""
    return [unpack(subject, headers, body) for subject, headers, body in await raw_messages(url, stream)]


async def raw_messages(url: str, stream: str) -> list[tuple[str, dict[str, str], bytes]]:
    """Read subject, headers and body of each message of a stream, as the server has them."""
    client = await nats.connect(url)
    try:
        info = json.loads((await client.request(f"$JS.API.STREAM.INFO.{stream}", timeout=10)).data)
        found = []
        for sequence in range(info["state"]["first_seq"], info["state"]["last_seq"] + 1):
            question = json.dumps({"seq": sequence}).encode()
            answer = json.loads((await client.request(f"$JS.API.STREAM.MSG.GET.{stream}", question, timeout=10)).data)
            if "message" in answer:
                found.append(_raw(answer["message"]))
    finally:
        await client.close()
    return found


def _raw(message: dict[str, str]) -> tuple[str, dict[str, str], bytes]:
    lines = base64.b64decode(message.get("hdrs", "")).decode().split("\r\n")[1:]
    headers = dict(line.split(": ", 1) for line in lines if line)
    return message["subject"], headers, base64.b64decode(message.get("data", ""))

"""A web application that receives webhooks: a program of the standard library alone, run as a server of our own.

It appends each request that it takes to `received.jsonl` and each connection to `connections.jsonl`. What it does with
a request is decided by the first rule in `rules.json` that fits; see `servers/webhook_receiver.py`.
"""

import asyncio
import base64
import json
import os
import ssl
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

LARGEST = 400_000
ENDLESS = b"x" * 1000


class Endpoint:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._received = (directory / "received.jsonl").open("ab", buffering=0)
        self._connections = (directory / "connections.jsonl").open("ab", buffering=0)
        self._rules: list[dict[str, Any]] = []
        self._rules_read = 0
        self._count = 0
        self._busy: Counter[str] = Counter()
        self.sni: str | None = None

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._count += 1
        connection = f"{os.getpid()}-{self._count}"
        self._write(self._connections, {"connection": connection, "peer": writer.get_extra_info("peername")[1]})
        try:
            while await self._request(connection, reader, writer):
                pass
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # a client that hangs up in mid-request is one of the things that are tested
        finally:
            writer.close()

    async def _request(self, connection: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        key = f"{headers.get('pillarbox-topic')} {headers.get('pillarbox-aggregate-id', headers.get('pillarbox-key'))}"
        self._busy[key] += 1
        try:
            rule = self._rule(body)
            request = {
                "request": head[0],
                "headers": headers,
                "body": base64.b64encode(body).decode(),
                "connection": connection,
                "sni": self.sni,
                "at_once": self._busy.total(),
                "of_its_key": self._busy[key],
            }
            await asyncio.sleep(rule.get("delay", 0))
            if rule.get("store", 200 <= rule.get("status", 200) < 300):
                self._write(self._received, request | {"at": time.time()})
            return await self._answer(rule, reader, writer)
        finally:
            self._busy[key] -= 1

    async def _answer(self, rule: dict[str, Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        if rule.get("close"):
            return False
        if rule.get("hang"):
            await reader.read()
            return False
        if "raw" in rule:
            writer.write(rule["raw"].encode("latin-1"))
        else:
            body = rule.get("body", "ok").encode()
            headers = {"content-length": str(len(body)), **rule.get("headers", {})}
            lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
            writer.write(f"HTTP/1.1 {rule.get('status', 200)} Said\r\n{lines}\r\n".encode() + body)
        await writer.drain()
        while pace := rule.get("endless"):
            writer.write(ENDLESS)
            await writer.drain()
            await asyncio.sleep(pace)
        return True

    def _rule(self, body: bytes) -> dict[str, Any]:
        """Give the first rule that fits and is not used up."""
        if len(body) > LARGEST:
            return {"status": 413, "body": f"at most {LARGEST} bytes"}
        file = self._directory / "rules.json"
        if file.exists() and file.stat().st_mtime_ns != self._rules_read:
            self._rules_read = file.stat().st_mtime_ns
            self._rules = json.loads(file.read_text())
        for rule in self._rules:
            if rule.get("contains", "").encode() in body and rule.get("times", 1) > 0 and _is_meant(rule):
                if "times" in rule:
                    rule["times"] -= 1
                return rule
        return {}

    def _write(self, file: Any, line: dict[str, Any]) -> None:
        file.write(json.dumps(line).encode() + b"\n")


def _is_meant(rule: dict[str, Any]) -> bool:
    """Count a request that a rule fits; say whether the rule is for the one of that number."""
    rule["seen"] = rule.get("seen", -1) + 1
    return "numbers" not in rule or rule["seen"] in rule["numbers"]


async def main(port: int, directory: Path, certificate: str | None) -> None:
    endpoint = Endpoint(directory)
    tls = None
    if certificate is not None:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(certificate)

        def named(_: object, name: str | None, __: object) -> None:
            endpoint.sni = name

        tls.sni_callback = named
    async with await asyncio.start_server(endpoint.connected, "127.0.0.1", port, ssl=tls, limit=1 << 20) as server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else None))

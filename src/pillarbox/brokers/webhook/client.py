"""The client: connections to one endpoint, each to an address that was looked up once and checked.

The name is looked up here, never by the library, which is given an address: between check and connection nobody can
change what the name means. The header Host, SNI and the certificate's check have the name all the same.
"""

import asyncio
import socket
import ssl
from collections import deque
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from pillarbox.brokers.webhook.options import WebhookOptions, refusal
from pillarbox.core.retry import sayable, words_of
from pillarbox.errors import BrokerUnavailable, MissingExtra, PublishError, PublishRejected

try:
    import httpx
except ImportError as error:  # pragma: no cover - the extra is installed where the tests run
    raise MissingExtra("webhooks", "an HTTPS broker") from error

CONNECTING = 3.0
"""Seconds for each address, at most."""
REACHING = 10.0
"""The same, if nobody waits for an answer."""
IDLE = 15.0
"""Seconds after which a connection that nobody used is closed."""
LOOKED_UP_FOR = 30.0
"""Seconds for which a name's addresses are kept."""
LONGEST_BODY = 4096
READING = 1.0
"""Seconds for the rest of an answer, once its status is there."""
LONGEST_WORDS = 500
_BODILESS = frozenset((204, 304))


class Unreachable(BrokerUnavailable):
    """No connection to the endpoint came about, so nobody heard of the message."""


class Broken(BrokerUnavailable):
    """The connection broke in mid-call, so nobody knows whether the message was heard."""


class Answer:
    """A status, headers in lower case, and the beginning of what stood in the body."""

    __slots__ = ("headers", "status", "words")

    def __init__(self, status: int, headers: "httpx.Headers", words: str) -> None:
        self.status, self.headers, self.words = status, headers, words


class Client:
    """Calls one endpoint. Redirects are answers like others, and no proxy is taken from the environment."""

    def __init__(self, options: WebhookOptions) -> None:
        self._options = options
        self._tls = options.tls() or httpx.create_ssl_context()
        # A pool for each connection: the library's own looks at all of its connections for each of them at every call.
        self._idle: deque[tuple[httpx.AsyncHTTPTransport, float]] = deque()
        self._addresses: list[str] = []
        self._looked_up_at = 0.0
        self._looking = asyncio.Lock()
        self._fixed = [("host", options.authority), ("accept-encoding", "identity"), ("user-agent", "pillarbox")]
        if options.authorization is not None:
            self._fixed.append(("authorization", options.authorization))

    async def post(self, headers: Sequence[tuple[str, str]], body: bytes, deadline: float) -> Answer:
        """Make one call and give its answer. Raises TimeoutError at the deadline, BrokerUnavailable if nobody answers,
        PublishError if the answer makes no sense. There are as many connections as there are calls at a time."""
        transport = self._idle.pop()[0] if self._idle else self._new()
        clean = False
        try:
            response = await self._post(transport, headers, body, deadline)
            answer = Answer(response.status_code, response.headers, await self._words(response, deadline))
            clean = _is_clean(transport, response)
            return answer
        finally:
            await self._put_back(transport, clean)

    async def reach(self) -> datetime | None:
        """Connect and hang up, without a request; give until when the certificate holds. Raises BrokerUnavailable."""
        failure: Exception | None = None
        tls, name = (self._tls, self._options.host) if self._options.scheme == "https" else (None, None)
        for address in await self._checked():
            try:
                async with asyncio.timeout(REACHING):
                    _, writer = await asyncio.open_connection(
                        address, self._options.port, ssl=tls, server_hostname=name
                    )
            except OSError as error:  # as are a timeout and what TLS finds wrong
                failure = error
                continue
            writer.transport.abort()
            return _holds_until(writer)
        raise self._unreachable(failure)

    async def close(self) -> None:
        """Close all connections; nobody may be calling."""
        while self._idle:
            await self._idle.pop()[0].aclose()

    async def _put_back(self, transport: "httpx.AsyncHTTPTransport", clean: bool) -> None:
        """Keep a connection for the next call, or close it if that call might read what it did not ask for."""
        now = asyncio.get_running_loop().time()
        old = [] if clean else [transport]
        if clean:
            self._idle.append((transport, now))
        if self._idle and now - self._idle[0][1] > IDLE:
            old.append(self._idle.popleft()[0])
        for one in old:
            await one.aclose()

    def _new(self) -> "httpx.AsyncHTTPTransport":
        limits = httpx.Limits(max_connections=1, max_keepalive_connections=1, keepalive_expiry=IDLE)
        return httpx.AsyncHTTPTransport(verify=self._tls, limits=limits)

    async def _post(
        self, transport: "httpx.AsyncHTTPTransport", headers: Sequence[tuple[str, str]], body: bytes, deadline: float
    ) -> "httpx.Response":
        async with asyncio.timeout_at(deadline):
            # A third, because TLS has as much again, and the library leaks the socket if it is cancelled meanwhile.
            connecting = min(CONNECTING, (deadline - asyncio.get_running_loop().time()) / 3)
            return await self._response(transport, [*self._fixed, *headers], body, connecting)

    async def _response(
        self, transport: "httpx.AsyncHTTPTransport", headers: list[tuple[str, str]], body: bytes, connecting: float
    ) -> "httpx.Response":
        failure: httpx.TransportError | None = None
        extensions = {"sni_hostname": self._options.host, "timeout": {"connect": connecting}}
        for address in await self._checked():
            url = self._url(address)
            request = httpx.Request("POST", url, headers=headers, content=body, extensions=extensions)
            try:
                return await transport.handle_async_request(request)
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                failure = error  # nothing was sent: the next address may do better
                self._prefer_others(address)
                continue
            except httpx.TransportError as error:
                broken = self._broken(error)
            raise broken  # out here, because the library's error may quote what must not be shown
        raise self._unreachable(failure)

    def _unreachable(self, failure: Exception | None) -> Unreachable:
        self._addresses = []
        words = "its name has no address" if failure is None else words_of(failure) + self._hint(failure)
        unreachable = Unreachable(f"{self._options.origin} cannot be reached: {words}")
        unreachable.__cause__ = failure
        return unreachable

    def _hint(self, failure: Exception) -> str:
        """Say what may be wrong with the URL: a server without TLS may wait for the rest of a request, for ever."""
        if self._options.scheme == "https" and (
            isinstance(failure, httpx.ConnectTimeout | TimeoutError) or "WRONG_VERSION_NUMBER" in words_of(failure)
        ):
            return f" (if somebody listens at port {self._options.port}, it may not speak TLS: then it is http://)"
        return ""

    def _broken(self, error: "httpx.TransportError") -> PublishError:
        words = self._options.quiet(words_of(error))[:LONGEST_WORDS]
        kind: type[PublishError] = Broken
        said = f"the connection to {self._options.origin} broke before it answered"
        if isinstance(error, httpx.LocalProtocolError):
            kind, said = PublishRejected, "it cannot be written as HTTP"
        elif isinstance(error, httpx.RemoteProtocolError) and "disconnected" not in words:
            kind, said = PublishError, f"{self._options.origin} answered what is not HTTP"
        return kind(f"{said}: {words}", brief=f"{said} ({type(error).__name__})")  # it may quote what was sent

    def _url(self, address: str) -> "httpx.URL":
        options = self._options
        return httpx.URL(
            scheme=options.scheme, host=address, port=options.port, raw_path=options.target.encode("ascii")
        )

    async def _checked(self) -> list[str]:
        """Give the endpoint's addresses; if one of them is forbidden, none is tried."""
        async with self._looking:
            now = asyncio.get_running_loop().time()
            if not self._addresses or now - self._looked_up_at > LOOKED_UP_FOR:
                self._addresses = []
                self._addresses, self._looked_up_at = await self._look_up(), now
            return list(self._addresses)

    async def _look_up(self) -> list[str]:
        options = self._options
        try:
            found = await asyncio.get_running_loop().getaddrinfo(options.host, options.port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            raise Unreachable(f"{options.origin}: its name cannot be looked up: {words_of(error)}") from error
        addresses = list(dict.fromkeys(str(address[0]) for *_, address in found))
        for address in addresses:
            kind = options.allowed.why_not(options.host, address)
            if kind is not None:
                raise Unreachable(f"{options.origin}: {refusal(options.host, address, kind)}")
        return addresses

    def _prefer_others(self, address: str) -> None:
        if address in self._addresses:
            self._addresses.remove(address)
            self._addresses.append(address)

    async def _words(self, response: "httpx.Response", deadline: float) -> str:
        """Read a little of the body, so that the connection can be used again; a long or slow one is cut off."""
        body = bytearray()
        loop = asyncio.get_running_loop()
        assert isinstance(response.stream, httpx.AsyncByteStream)
        try:
            async with asyncio.timeout_at(min(deadline, loop.time() + READING)):
                async for part in response.stream:
                    body += part
                    if len(body) > LONGEST_BODY:
                        break
        except (TimeoutError, httpx.TransportError):
            pass  # the status has said it all
        finally:
            await response.stream.aclose()
        return self._shown(response, bytes(body[:LONGEST_BODY]))

    def _shown(self, response: "httpx.Response", body: bytes) -> str:
        if 200 <= response.status_code < 300:
            return ""
        text = "" if "content-encoding" in response.headers else sayable(body.decode(errors="replace"))
        if location := response.headers.get("location"):
            text = f"Location: {location} {text}"
        return self._options.quiet(" ".join(text.split()))[:LONGEST_WORDS]


def _holds_until(writer: asyncio.StreamWriter) -> datetime | None:
    certificate = writer.get_extra_info("peercert") or {}  # empty if nobody has looked at it
    until = certificate.get("notAfter")
    return None if until is None else datetime.fromtimestamp(ssl.cert_time_to_seconds(until), UTC)


def _is_clean(transport: Any, response: "httpx.Response") -> bool:
    """Say whether nothing stands behind an answer: the next call on this connection would take it for its own answer.
    Whatever cannot be looked into is taken for not clean."""
    headers = response.headers
    if response.status_code in _BODILESS and (
        headers.get("content-length", "0") != "0" or "transfer-encoding" in headers
    ):
        return False  # the body that must not be there may still be on its way
    try:
        (connection,) = transport._pool.connections
        surplus, _ = connection._connection._h11_state.trailing_data
    except (AttributeError, TypeError, ValueError):
        return False  # it was closed, or the library has changed: a connection for each call is slower, and safe
    return not surplus and _is_decrypted(response.extensions.get("network_stream"))


def _is_decrypted(stream: Any) -> bool:
    """Say whether TLS holds nothing back: it hands out one record at a time, and the socket does not show the rest."""
    tls = stream.get_extra_info("ssl_object") if stream is not None else None
    if tls is None:
        return stream is not None
    try:
        tls.read(1)
    except ssl.SSLWantReadError:
        return True
    except ssl.SSLError:
        return False
    return False  # a surplus, or the end

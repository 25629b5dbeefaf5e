"""RabbitMQ's management API: what AMQP does not tell of a virtual host, asked over HTTP by the broker's own user."""

import asyncio
import json
import ssl
from base64 import b64encode
from collections.abc import Mapping, Sequence
from http.client import HTTPException
from typing import Any, NamedTuple
from urllib.error import HTTPError
from urllib.parse import quote, unquote, urlsplit
from urllib.request import HTTPRedirectHandler, HTTPSHandler, ProxyHandler, Request, build_opener

from pillarbox.brokers.rabbitmq.address import Address
from pillarbox.core.retry import words_of

PATIENCE = 5.0
"""Seconds in which it must answer."""
NOT_TOLD = (401, 403)
_REFUSED = object()
_QUEUE = "name,type,durable,arguments,policy,effective_policy_definition"

Thing = dict[str, Any]
_Shape = Mapping[str, type]
"""The names that a thing must have, and what they are."""
_OVERVIEW: _Shape = {"rabbitmq_version": str}
_EXCHANGE: _Shape = {"name": str, "type": str}
_BINDING: _Shape = dict.fromkeys(("source", "destination", "destination_type", "routing_key"), str)
_QUEUED: _Shape = {"name": str, "durable": bool}
_POLICY: _Shape = {"name": str, "pattern": str, "apply-to": str, "priority": int, "definition": dict}


class Untold(Exception):
    """It did not say, and why."""


class Host(NamedTuple):
    """What there is in a virtual host."""

    version: str
    """The server's."""
    exchanges: Sequence[Thing]
    bindings: Sequence[Thing]
    queues: Sequence[Thing]
    policies: Sequence[Thing] | None
    """None if this user may not see them."""


async def ask(address: Address) -> Host:
    """Ask for all of it. Raises Untold."""
    return await asyncio.to_thread(lambda: _Management(address).host())


class _Stay(HTTPRedirectHandler):
    """Follows nobody to another place: the password would go there too."""

    def redirect_request(self, *answer: Any) -> None:
        return None


class _Management:
    def __init__(self, address: Address) -> None:
        self._url = address.management
        parts = urlsplit(address.url)
        self._user = unquote(parts.username or "guest")
        login = f"{self._user}:{unquote(parts.password or 'guest')}"
        self._headers = {"Authorization": f"Basic {b64encode(login.encode()).decode()}"}
        self._vhost = quote(unquote(parts.path[1:]) or "/", safe="")
        self._opener = build_opener(ProxyHandler({}), HTTPSHandler(context=_tls(address)), _Stay())

    def host(self) -> Host:
        vhost = self._vhost
        return Host(
            _shaped("overview", self._get("overview"), _OVERVIEW)["rabbitmq_version"],
            self._list(f"exchanges/{vhost}", _EXCHANGE),
            self._list(f"bindings/{vhost}", _BINDING),
            self._list(f"queues/{vhost}?columns={_QUEUE}", _QUEUED),
            self._list(f"policies/{vhost}", _POLICY, may_refuse=True),
        )

    def _list(self, path: str, shape: _Shape, *, may_refuse: bool = False) -> Any:
        told = self._get(path, may_refuse=may_refuse)
        if told is _REFUSED:
            return None
        if not isinstance(told, list):
            raise _odd(path)
        return [_shaped(path, one, shape) for one in told]

    def _get(self, path: str, *, may_refuse: bool = False) -> Any:
        request = Request(f"{self._url}/api/{path}", headers=self._headers)
        try:
            with self._opener.open(request, timeout=PATIENCE) as answer:
                return json.load(answer)
        except HTTPError as error:
            error.close()
            if error.code in NOT_TOLD:
                if may_refuse:
                    return _REFUSED
                raise Untold(f"it refuses the user {self._user} ({error.code}), who needs the tag management") from None
            raise Untold(f"it answers {error.code} {error.reason}") from None
        except (OSError, ValueError, RecursionError) as error:
            raise Untold(words_of(getattr(error, "reason", error))) from None
        except HTTPException as error:
            raise Untold(
                f"what answers speaks no HTTP, or breaks off ({type(error).__name__}): see that rabbitmq.management"
                " has the port of the management API, not of AMQP"
            ) from None


def _shaped(path: str, told: Any, shape: _Shape) -> Thing:
    if not isinstance(told, dict) or not all(isinstance(told.get(name), kind) for name, kind in shape.items()):
        raise _odd(path)
    return told


def _odd(path: str) -> Untold:
    return Untold(
        f"what answers to /api/{path.partition('?')[0]} is not RabbitMQ's management API: see that"
        " rabbitmq.management leads to it"
    )


def _tls(address: Address) -> ssl.SSLContext:
    """Take the certificates that the broker's URL names. Raises Untold."""
    given = dict(pair.split("=", 1) for pair in urlsplit(address.url).query.split("&"))
    files = {name: unquote(value) for name, value in given.items()}
    try:
        context = ssl.create_default_context(cafile=files.get("cafile"), capath=files.get("capath"))
        if "certfile" in files:
            context.load_cert_chain(files["certfile"], files.get("keyfile"))
    except (OSError, ValueError) as error:
        raise Untold(
            f"what cafile, capath, certfile or keyfile name cannot be used for TLS: {words_of(error)}"
        ) from None
    if "no_verify_ssl" in files:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context

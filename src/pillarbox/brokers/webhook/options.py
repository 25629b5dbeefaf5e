"""Options: the URL of the endpoint and the table `[webhooks]`, checked before anything is opened.

The URL belongs to the endpoint, with its path and its query; so every option stands in the table.
"""

import base64
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network
from typing import Any, Self
from urllib.parse import unquote, urlsplit

from pillarbox.brokers.webhook.addresses import Allowed
from pillarbox.brokers.webhook.signature import read_key
from pillarbox.core.wording import near_to
from pillarbox.errors import ConfigError

CONNECTIONS, MOST_CONNECTIONS = 50, 1000
KEYS = 2
"""How many keys are active at once at most: the new one and the old one."""
_PORTS = {"https": 443, "http": 80}
_KNOWN = ("secrets", "allow", "connections", "tls_ca", "tls_cert", "tls_key", "tls_verify", "unsafe")


@dataclass(frozen=True, slots=True)
class WebhookOptions:
    """Where the endpoint is, and how it is called."""

    scheme: str
    host: str
    port: int
    target: str = field(repr=False)
    """The path and the query, which often hold a secret."""
    keys: tuple[bytes, ...] = field(repr=False)
    authorization: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    allowed: Allowed = field(default_factory=Allowed)
    connections: int = CONNECTIONS
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    tls_verify: bool = True

    @classmethod
    def read(cls, url: str, table: Mapping[str, Any]) -> Self:
        """Take the URL apart, and read the table; raise ConfigError, with the option's name."""
        _check_known(table)
        unsafe = _truth("unsafe", table.get("unsafe", False))
        allowed = _allowed(_texts("allow", table.get("allow", ())))
        given = _taken_apart(url)
        options = cls(
            **given,
            keys=_keys(_texts("secrets", table.get("secrets", ())), unsafe),
            allowed=allowed,
            connections=_number("connections", table.get("connections", CONNECTIONS)),
            tls_ca=_text("tls_ca", table.get("tls_ca")),
            tls_cert=_text("tls_cert", table.get("tls_cert")),
            tls_key=_text("tls_key", table.get("tls_key")),
            tls_verify=_truth("tls_verify", table.get("tls_verify", True)),
        )
        options._refuse_what_is_unsafe(unsafe)
        options._refuse_forbidden_literal()
        return options

    @property
    def origin(self) -> str:
        """The endpoint for people: without user, path and query, which may be secrets."""
        return f"{self.scheme}://{self.authority}"

    @property
    def authority(self) -> str:
        """What the header Host says."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"

    def quiet(self, text: str) -> str:
        """Hide what we know to be secret, should an endpoint say it back to us."""
        path, _, query = self.target.partition("?")
        values = [value for _, _, value in (part.partition("=") for part in query.split("&"))]
        for secret in (self.authorization, (self.authorization or "").partition(" ")[2], self.password, query, *values):
            if secret:
                text = text.replace(secret, "***").replace(unquote(secret), "***")
        return text.replace(path, "/***") if len(path) > 1 else text

    def tls(self) -> ssl.SSLContext | None:
        """Give what is needed to speak TLS; None leaves it to the library and its list of authorities."""
        if self.tls_ca is None and self.tls_cert is None and self.tls_verify:
            return None
        try:
            context = ssl.create_default_context(cafile=self.tls_ca)
            if self.tls_cert is not None:
                context.load_cert_chain(self.tls_cert, self.tls_key)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(
                f"webhooks.tls_ca, webhooks.tls_cert, webhooks.tls_key: cannot be read: {error}"
            ) from error
        if not self.tls_verify:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return context

    def _refuse_what_is_unsafe(self, unsafe: bool) -> None:
        if unsafe:
            return
        if self.scheme == "http" and not self._is_allowed_by_name():
            raise ConfigError(
                f"broker: http:// lets everybody on the way read and change events: write https://, or name the host in"
                f' webhooks.allow = ["{self.host}"], or set webhooks.unsafe = true'
            )
        if not self.tls_verify:
            raise ConfigError(
                "webhooks.tls_verify: without it anybody may answer in the endpoint's place: leave it on, or set"
                " webhooks.unsafe = true"
            )

    def _is_allowed_by_name(self) -> bool:
        literal = literal_address(self.host)
        networks = self.allowed.networks
        return self.host in self.allowed.hosts or (
            literal is not None and any(ip_address(literal) in network for network in networks)
        )

    def _refuse_forbidden_literal(self) -> None:
        literal = literal_address(self.host)
        kind = None if literal is None else self.allowed.why_not(self.host, literal)
        if kind is not None:
            raise ConfigError(f"broker: {refusal(self.host, literal, kind)}")


def refusal(host: str, address: str | None, kind: str) -> str:
    """Say that an address is refused, and what helps if it is meant."""
    return (
        f"{host} is the {kind} address {address}, where webhooks do not go: name it in"
        f' webhooks.allow = ["{address}"] if it is meant'
    )


def literal_address(host: str) -> str | None:
    """Give the address that a host is, if it is no name: also 2130706433, 0177.1 and 0x7f.0.0.1, as the system reads
    them."""
    try:
        return str(ip_address(host))
    except ValueError:
        pass  # a name, or one of the odd ways to write an address
    try:
        return socket.inet_ntoa(socket.inet_aton(host)) if host[:1].isdigit() and " " not in host else None
    except OSError:
        return None


def _taken_apart(url: str) -> dict[str, Any]:
    try:
        parts = urlsplit(url)
        port = parts.port or _PORTS[parts.scheme]
        host = (parts.hostname or "").rstrip(".")
        host.encode("ascii")
    except UnicodeEncodeError:
        raise ConfigError("broker: write the host of the URL in ASCII, such as xn--bcher-kva.example") from None
    except ValueError:
        raise ConfigError("broker: the URL's host or port cannot be read: write https://host/path") from None
    if not host or any(character in host for character in "%\\ "):
        raise ConfigError("broker: the URL names no host: write https://host/path")
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    if not target.isascii() or any(character <= " " or character == "\x7f" for character in target):
        raise ConfigError("broker: the URL's path and query hold characters that must be percent-encoded")
    user, password = unquote(parts.username or ""), unquote(parts.password or "")
    basic = base64.b64encode(f"{user}:{password}".encode()).decode() if user or password else None
    return {
        "scheme": parts.scheme,
        "host": host,
        "port": port,
        "target": target,
        "authorization": f"Basic {basic}" if basic else None,
        "password": password or None,
    }


def _keys(secrets: tuple[str, ...], unsafe: bool) -> tuple[bytes, ...]:
    if not secrets and not unsafe:
        raise ConfigError(
            'webhooks.secrets: is not set, so nobody could tell that an event is yours: secrets = ["whsec_…"] in the'
            " table [webhooks], or PILLARBOX_WEBHOOKS_SECRETS"
        )
    if len(secrets) > KEYS:
        raise ConfigError(f"webhooks.secrets: {len(secrets)} are given; while keys are changed, {KEYS} are active")
    try:
        return tuple(read_key(secret) for secret in secrets)
    except ValueError as error:
        raise ConfigError(f"webhooks.secrets: {error}") from None


def _allowed(names: tuple[str, ...]) -> Allowed:
    hosts, networks = set(), []
    for name in names:
        literal = literal_address(name)
        try:
            networks.append(ip_network(literal or name))
        except ValueError:
            if "/" in name or ":" in name or "*" in name:
                raise ConfigError(
                    f"webhooks.allow: {name!r} is no host, address or network: write hooks.internal or 10.1.2.0/24"
                ) from None
            hosts.add(name.lower().rstrip("."))
    return Allowed(frozenset(hosts), tuple(networks))


def _check_known(table: Mapping[str, Any]) -> None:
    for name in table:
        if name not in _KNOWN:
            near = near_to(name, _KNOWN)
            cure = f"the nearest known one is webhooks.{near}" if near else f"known are {', '.join(_KNOWN)}"
            raise ConfigError(f"there is no option webhooks.{name}; {cure}")


def _text(name: str, value: object) -> str | None:
    if value is not None and (not isinstance(value, str) or not value):
        raise ConfigError(f"webhooks.{name}: expected the name of a file")
    return value


def _texts(name: str, value: object) -> tuple[str, ...]:
    """Read a list of texts; in an environment variable they stand with commas or spaces between them."""
    if isinstance(value, str):
        return tuple(value.replace(",", " ").split())
    if isinstance(value, list | tuple) and all(isinstance(one, str) for one in value):
        return tuple(value)
    raise ConfigError(f"webhooks.{name}: expected a list of texts")


def _truth(name: str, value: object) -> bool:
    if isinstance(value, bool):
        return value
    if value in ("true", "false"):
        return value == "true"
    raise ConfigError(f"webhooks.{name}: expected true or false")


def _number(name: str, value: object) -> int:
    if isinstance(value, str) and value.isascii() and value.isdigit():
        value = int(value)
    if type(value) is not int or not 1 <= value <= MOST_CONNECTIONS:
        raise ConfigError(f"webhooks.{name}: expected a whole number from 1 to {MOST_CONNECTIONS:,}")
    return value

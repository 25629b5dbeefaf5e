"""What can be set for NATS: in the URL, `nats://user:password@host:4222,other:4222?stream=ORDERS`, and in [nats]."""

import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from difflib import get_close_matches
from typing import Any, Self
from urllib.parse import parse_qsl, unquote

from pillarbox.brokers.urls import check_login, host_and_port
from pillarbox.errors import ConfigError

PORT = 4222
_SECRET = re.compile(r"S[A-Z2-7]{20}|eyJ|-----|\s")
"""How seeds, JWTs and keys begin, where the path of a file is expected."""


class TlsContext(ssl.SSLContext):
    """Notes that it was used: to a server that does not ask for TLS the library speaks plain text, and says nothing."""

    used = False

    def wrap_bio(self, *arguments: Any, **options: Any) -> ssl.SSLObject:
        self.used = True
        return super().wrap_bio(*arguments, **options)


@dataclass(frozen=True, slots=True)
class NatsOptions:
    """Where the servers are, and what the table [nats] says."""

    servers: tuple[str, ...]
    stream: str | None = None
    """The stream that every acknowledgement must come from; None asks the server which one takes the subject."""
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    credentials: str | None = None
    """The file with a user's JWT and seed."""
    nkey: str | None = None
    """The file with a user's seed."""
    inbox_prefix: str = "_INBOX"
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    tls_verify: bool = True
    lease: float = 10.0
    """How many seconds a member of a consumer may be silent before another one takes over."""
    unsafe: bool = False

    @classmethod
    def read(cls, scheme: str, rest: str, table: Mapping[str, Any]) -> Self:
        """Read the part of the URL that follows the colon, and the table [nats]; the URL wins."""
        check_login(rest)
        address, _, query = rest.removeprefix("//").partition("?")
        login, _, hosts = address.rpartition("@")
        given_hosts = [host for host in hosts.rstrip("/").split(",") if host]
        if not given_hosts or "/" in hosts.rstrip("/"):
            raise ConfigError(f"broker: write {scheme}://host:{PORT}, or several hosts with commas between them")
        given = dict(table) | dict(parse_qsl(query, keep_blank_values=True))
        values: dict[str, Any] = {name: _value(name, value) for name, value in given.items()}
        servers = tuple(f"{scheme}://{host_and_port(host, PORT)}" for host in given_hosts)
        options = cls(servers, **(_login(login) | values))
        options._check_files()
        options._refuse_what_is_unsafe()
        return options

    def _check_files(self) -> None:
        for name in _FILES:
            path = getattr(self, name)
            if path is None:
                continue
            try:
                open(path, "rb").close()
            except (OSError, ValueError) as error:
                shown = "what was given, which looks like the secret itself," if _SECRET.match(path) else path
                why = getattr(error, "strerror", None) or "no file has such a name"
                raise ConfigError(f"nats.{name}: {shown} cannot be read: {why}; give the path of a file") from None

    def _refuse_what_is_unsafe(self) -> None:
        if not self.tls_verify and not self.unsafe:
            raise ConfigError(
                "nats.tls_verify: without it anybody may answer in the server's place, and acknowledge what he throws"
                " away: leave it on, or say nats.unsafe = true"
            )

    @property
    def encrypted(self) -> bool:
        """Whether a connection must be encrypted, whatever the server asks for."""
        return self.servers[0].startswith("tls:")

    def tls(self) -> "TlsContext | None":
        """Give what is needed to speak TLS; None leaves it to what the server asks for."""
        if not (self.encrypted or self.tls_ca or self.tls_cert or not self.tls_verify):
            return None
        context = TlsContext(ssl.PROTOCOL_TLS_CLIENT)
        try:
            if self.tls_ca is None:
                context.load_default_certs()
            else:
                context.load_verify_locations(self.tls_ca)
            if self.tls_cert is not None:
                context.load_cert_chain(self.tls_cert, self.tls_key)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(f"nats.tls_ca, nats.tls_cert, nats.tls_key: cannot be read: {error}") from error
        if not self.tls_verify:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return context


def _login(login: str) -> dict[str, str]:
    """Read `user:password` before the hosts; alone it is a token."""
    if not login:
        return {}
    user, colon, password = login.partition(":")
    return {"user": unquote(user), "password": unquote(password)} if colon else {"token": unquote(user)}


_IN_THE_ADDRESS = ("servers", "user", "password")
_KNOWN = {field.name: field.type for field in fields(NatsOptions) if field.name not in _IN_THE_ADDRESS}
_FILES = ("credentials", "nkey", "tls_ca", "tls_cert", "tls_key")


def _value(name: str, value: object) -> object:
    if name not in _KNOWN:
        near = get_close_matches(name, _KNOWN, 1)
        cure = f"did you mean {near[0]}?" if near else f"known are {', '.join(_KNOWN)}"
        raise ConfigError(f"there is no option nats.{name}; {cure}")
    default = getattr(_DEFAULTS, name)
    if isinstance(default, bool):
        return _switch(name, value)
    if isinstance(default, float):
        return _seconds(name, value)
    if not isinstance(value, str) or not value:
        raise ConfigError(f"nats.{name}: must be a text, not {type(value).__name__}")
    return value


def _switch(name: str, value: object) -> bool:
    if isinstance(value, bool):
        return value
    if value in ("true", "false"):
        return value == "true"
    raise ConfigError(f"nats.{name}: must be true or false")


def _seconds(name: str, value: object) -> float:
    try:
        seconds = float(str(value).removesuffix("s").strip())
        timedelta(seconds=seconds)
    except (ValueError, OverflowError):
        raise ConfigError(f"nats.{name}: must be a number of seconds, such as 10") from None
    if not 0.1 <= seconds <= 3600:
        raise ConfigError(f"nats.{name}: {seconds:g} s is not between 0.1 s and an hour")
    return seconds


_DEFAULTS = NatsOptions(())

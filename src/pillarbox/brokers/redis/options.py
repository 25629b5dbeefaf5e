"""Options: the URL `redis://user:password@host:6379/0` and the table `[redis]`, checked before anything is opened."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote

from pillarbox.brokers.urls import split
from pillarbox.core.wording import near_to
from pillarbox.errors import ConfigError

LARGEST_BULK = 512 << 20
"""What Redis takes as one value unless its proto-max-bulk-len says otherwise, in bytes."""
_TLS = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs", "ssl_check_hostname")
_OWN = ("durable", "replicas", "maxlen", "largest_value", "unsafe")
_TRUTH = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


@dataclass(frozen=True, slots=True)
class Options:
    """Where the server is, and how it is used."""

    host: str
    port: int
    database: int
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: Mapping[str, Any] | None = None
    """The options of TLS; None without it."""
    durable: bool = False
    """Published means on disk: WAITAOF after each batch."""
    replicas: int = 0
    """How many replicas must have it on disk too."""
    maxlen: int | None = None
    """Trim each stream to about so many entries, whether they were read or not."""
    largest_value: int = LARGEST_BULK

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"


def read_options(url: str, table: Mapping[str, Any]) -> Options:
    """Take the URL apart and put the table's options to its own; raise ConfigError, with the option's name."""
    parts = split(url)
    secure = parts.scheme == "rediss"
    given = {f"redis.{name}": value for name, value in table.items()}
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if given.setdefault(f"redis.{name}", value) != value:
            raise ConfigError(f"redis.{name}: the broker's URL and the table [redis] say different things; keep one")
    _check_known(given, secure)
    unsafe = _truth("redis.unsafe", given.get("redis.unsafe", False))
    replicas, durable = _number(given, "replicas", 0), _truth("redis.durable", given.get("redis.durable", False))
    if replicas and not durable:
        raise ConfigError("redis.replicas: says who must have it on disk, which needs redis.durable = true")
    maxlen = _number(given, "maxlen", 1) if "redis.maxlen" in given else None
    if maxlen is not None and not unsafe:
        raise ConfigError(
            "redis.maxlen: throws entries away that nobody has read yet; leave it out, or set redis.unsafe = true"
        )
    return Options(
        host=unquote(parts.hostname or "localhost"),
        port=parts.port or 6379,
        database=_database(parts.path),
        username=unquote(parts.username) if parts.username else None,
        password=unquote(parts.password) if parts.password else None,
        tls=_tls(given, unsafe) if secure else None,
        durable=durable,
        replicas=replicas,
        maxlen=maxlen,
        largest_value=_number(given, "largest_value", 1) if "redis.largest_value" in given else LARGEST_BULK,
    )


def _check_known(given: Mapping[str, Any], secure: bool) -> None:
    known = [f"redis.{name}" for name in (*_OWN, *_TLS)]
    for name in given:
        if name not in known:
            near = near_to(name, known)
            cure = f"the nearest known one is {near}" if near else f"known are {', '.join(known)}"
            raise ConfigError(f"there is no option {name}; {cure}")
        if name.startswith("redis.ssl_") and not secure:
            raise ConfigError(f"{name}: TLS is used with a rediss:// URL only; write rediss:// or leave it out")


def _tls(given: Mapping[str, Any], unsafe: bool) -> dict[str, Any]:
    tls = {name: given[f"redis.{name}"] for name in _TLS if f"redis.{name}" in given}
    if tls.setdefault("ssl_cert_reqs", "required") not in ("required", "optional", "none"):
        raise ConfigError("redis.ssl_cert_reqs: expected required, optional or none")
    tls["ssl_check_hostname"] = _truth("redis.ssl_check_hostname", tls.get("ssl_check_hostname", True))
    if tls["ssl_cert_reqs"] == "none" and "redis.ssl_check_hostname" not in given:
        tls["ssl_check_hostname"] = False
    for name, safe in (("ssl_cert_reqs", "required"), ("ssl_check_hostname", True)):
        if tls[name] != safe and not unsafe:
            raise ConfigError(
                f"redis.{name}: {str(tls[name]).lower()} lets anybody answer in the server's place; leave it out, or "
                "set redis.unsafe = true"
            )
    return tls


def _database(path: str) -> int:
    number = path.strip("/")
    if number and not (number.isascii() and number.isdigit()):
        raise ConfigError("broker: after the host of a redis URL stands the number of its database, such as /0")
    return int(number or 0)


def _truth(name: str, value: object) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in _TRUTH:
        return _TRUTH[value.lower()]
    raise ConfigError(f"{name}: expected true or false")


def _number(given: Mapping[str, Any], name: str, least: int) -> int:
    value = given.get(f"redis.{name}", least)
    if isinstance(value, str) and value.isascii() and value.isdigit():
        value = int(value)
    if type(value) is not int or value < least:
        raise ConfigError(f"redis.{name}: expected a whole number, {least} or more")
    return value

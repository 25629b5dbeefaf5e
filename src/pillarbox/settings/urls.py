"""URLs of databases and brokers: taken apart, and shown without their secrets."""

import re
from typing import NamedTuple

from pillarbox.errors import ConfigError

HIDDEN = "***"
LONGEST_NAME, LONGEST_PATH = 200, 3000
"""Less than systems allow: SQLite and we ourselves put files beside it, with longer names."""
_SECRET = "pass|pwd|secret|token|key|sig|auth|cred|jaas|pem|sasl|%"  # percent-encoded, it may be any of them
_SECRET_NAME = re.compile(_SECRET, re.IGNORECASE)
_FILE = re.compile(r"sqlite(\+\w+)?:///[^:?]*", re.IGNORECASE)
# A database's user without a password is no secret, and the commands that we name must run.
_LOGIN = re.compile(
    r"(postgres(ql)?|mysql|mariadb)(\+\w+)?://[a-z_][a-z0-9_]{0,30}@[^@:]*(:\d+)?(/[^@:]*)?", re.IGNORECASE
)
# Up to the last @, because a password may hold anything; only a user's name before a colon is shown.
_PASSWORD = re.compile(r"""(?s)^([^/@:\s'"]*:(?!@))?.*@""")
# A value ends where the next option begins, or nowhere.
_SECRET_OPTION = re.compile(
    rf"""(?is)([^=?&;\#\s,'"]*(?:{_SECRET})[^=?&;\#,'"]*(?:=|["']\s*[=:])).*?(?=[&;][\w.%-]+=|\Z)"""
)
# A user and a password without the @ and the host that should follow; digits alone are a host's port.
_NO_HOST = re.compile(r"""^([^\s/:@?#'"\[]+:)(?!\d*(?:[\s/?#,;)'"]|\Z))[^\s/'"]+""")
# As people write it in YAML and in headers; keys are left alone here, they stand in many a harmless sentence.
_SPOKEN = re.compile(r"(?i)\b([\w.-]*(?:password|passwd|pwd|secret|token|api[_-]?key):\s+|bearer\s+)[^\s,;]+")
# How libpq writes it where it is not a URL.
_KEYWORDS = re.compile(r"\b(host|hostaddr|port|dbname|user|service)\s*=")
# The path of a webhook's endpoint is often what lets you in.
_ENDPOINT = re.compile(r"(?i)^(https?://[^/?#\s]*/)[^?#\s]+")
_A_URL = re.compile(r"\S*://(?:\S*[^\s:;,.])?")  # what ends a clause does not belong to it


class Url(NamedTuple):
    """A URL taken apart as far as everybody needs: the scheme without a driver's suffix, and what follows the colon."""

    scheme: str
    rest: str


def parse_url(setting: str, text: str) -> Url:
    """Split off the scheme; a SQLAlchemy driver suffix (`sqlite+pysqlite`) is dropped."""
    scheme, colon, rest = text.partition(":")
    scheme = scheme.partition("+")[0].lower()
    if not colon or not scheme.isalnum():
        if _KEYWORDS.search(text):
            raise ConfigError(f"{setting}: what was given is not a URL: write postgresql://user@host:5432/shop")
        file = "stream.db" if setting == "broker" else "shop.db"
        raise ConfigError(f"{setting}: what was given is not a URL: write for example sqlite:///{file}")
    return Url(scheme, rest)


def file_of(setting: str, url: Url) -> str:
    """Give the file that an sqlite URL names: three slashes before a relative path, four before an absolute one."""
    whole = without_secrets(f"{url.scheme}:{url.rest}")
    path = url.rest.removeprefix("///")
    if path == url.rest or not path or path == ":memory:":
        raise ConfigError(f"{setting}: {whole!r} names no file: write sqlite:///shop.db or sqlite:////absolute/shop.db")
    if "?" in path:
        raise ConfigError(f"{setting}: there are options after '?', which a file has none of: leave them out")
    if "\0" in path:
        raise ConfigError(f"{setting}: the file's path holds a NUL character, which no file can have: leave it out")
    if max(map(len, path.encode(errors="replace").split(b"/"))) > LONGEST_NAME or len(path) > LONGEST_PATH:
        raise ConfigError(
            f"{setting}: a name in the file's path has more than {LONGEST_NAME} bytes, or the path more than"
            f" {LONGEST_PATH:,} characters: shorten it"
        )
    return path


def without_secrets(text: str) -> str:
    """Hide the password and secret options of every URL in a text; rather too much than too little.

    >>> without_secrets("rabbitmq://shop:hunter2@localhost/vhost")
    'rabbitmq://shop:***@localhost/vhost'
    """
    given, text = text, _SPOKEN.sub(rf"\1{HIDDEN}", _SECRET_OPTION.sub(rf"\1{HIDDEN}", text))
    if given.count("@") > text.count("@") and "://" in given:
        # What looks like an option reaches over the end of a password: nobody can tell which is which.
        return f"{without_secrets(given.partition('://')[0])}://{HIDDEN}"
    if _FILE.fullmatch(text) or _LOGIN.fullmatch(text):
        return text
    first, *rest = (_PASSWORD.sub(rf"\1{HIDDEN}@", part) for part in text.split("://", 1))
    shown = "://".join([first, *(part if "@" in part else _NO_HOST.sub(rf"\1{HIDDEN}", part) for part in rest)])
    return _ENDPOINT.sub(rf"\1{HIDDEN}", shown)


def with_quiet_urls(text: str) -> str:
    """Hide the secrets of the URLs in a sentence, and leave the rest of it as it stands.

    >>> with_quiet_urls("paused by ann@desk: postgresql://shop:hunter2@localhost/shop is slow")
    'paused by ann@desk: postgresql://shop:***@localhost/shop is slow'
    >>> with_quiet_urls("https://localhost:8080: it is away")
    'https://localhost:8080: it is away'
    """
    return _A_URL.sub(lambda found: without_secrets(found[0]), text)


def hide(name: str, value: object) -> object:
    """Hide the secrets of a setting, at any depth."""
    if is_secret(name):
        return HIDDEN
    if isinstance(value, str):
        return without_secrets(value)
    if isinstance(value, dict):
        return {without_secrets(str(key)): hide(str(key), below) for key, below in value.items()}
    if isinstance(value, list | tuple):
        return [hide("", below) for below in value]
    return value


def is_secret(name: str) -> bool:
    """Say whether a setting of this name holds a secret."""
    return _SECRET_NAME.search(name) is not None

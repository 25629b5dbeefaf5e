"""URLs of databases and brokers: taken apart, and shown without their secrets."""

import re
from typing import NamedTuple

from pillarbox.core.secrets import HIDDEN, is_secret, without_secrets
from pillarbox.errors import ConfigError

LONGEST_NAME, LONGEST_PATH = 200, 3000
"""Less than systems allow: SQLite and we ourselves put files beside it, with longer names."""
# How libpq writes it where it is not a URL.
_KEYWORDS = re.compile(r"\b(host|hostaddr|port|dbname|user|service)\s*=")


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

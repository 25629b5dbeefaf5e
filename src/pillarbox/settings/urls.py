"""URLs of databases and brokers: taken apart, and shown without their secrets."""

import re
from typing import NamedTuple

from pillarbox.errors import ConfigError

HIDDEN = "***"
_PASSWORD = re.compile(r"(?<=://)([^/@:\s]*):([^/\s]*)@")
_SECRET_NAME = re.compile(r"secret|password|passwd|token|api_?key", re.IGNORECASE)
_SECRET_OPTION = re.compile(r"([?&][^=&]*(?:secret|password|passwd|token|api_?key)[^=&]*)=[^&\s]*", re.IGNORECASE)


class Url(NamedTuple):
    """A URL taken apart as far as everybody needs: the scheme without a driver's suffix, and what follows the colon."""

    scheme: str
    rest: str


def parse_url(setting: str, text: str) -> Url:
    """Split off the scheme; a SQLAlchemy driver suffix (`sqlite+pysqlite`) is dropped."""
    scheme, colon, rest = text.partition(":")
    scheme = scheme.partition("+")[0].lower()
    if not colon or not scheme.isalnum():
        raise ConfigError(f"{setting}: {without_secrets(text)!r} is not a URL: write for example sqlite:///shop.db")
    return Url(scheme, rest)


def file_of(setting: str, url: Url) -> str:
    """Give the file that an sqlite URL names: three slashes before a relative path, four before an absolute one."""
    whole = f"{url.scheme}:{url.rest}"
    path = url.rest.removeprefix("///")
    if path == url.rest or not path or path == ":memory:":
        raise ConfigError(f"{setting}: {whole!r} names no file: write sqlite:///shop.db or sqlite:////absolute/shop.db")
    if "?" in path:
        raise ConfigError(f"{setting}: {whole!r} has options after '?', which a file has none of: leave them out")
    return path


def without_secrets(text: str) -> str:
    """Hide the password and secret options of every URL in a text.

    >>> without_secrets("rabbitmq://shop:hunter2@localhost/vhost")
    'rabbitmq://shop:***@localhost/vhost'
    """
    return _SECRET_OPTION.sub(rf"\1={HIDDEN}", _PASSWORD.sub(rf"\1:{HIDDEN}@", text))


def is_secret(name: str) -> bool:
    """Say whether a setting of this name holds a secret."""
    return _SECRET_NAME.search(name) is not None

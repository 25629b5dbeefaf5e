"""What the URLs of brokers have in common: taken apart without a word of what may be a secret."""

import re
from urllib.parse import SplitResult, urlsplit

from pillarbox.errors import ConfigError

_END_OF_HOSTS = re.compile(r"[/?#]")


def check_login(rest: str) -> None:
    """Refuse what follows the scheme's colon if its user or password was not percent-encoded.

    A part of it would be taken for a port, a path or the name of an option, and told as such.
    """
    _, *after = _END_OF_HOSTS.split(rest.removeprefix("//"), maxsplit=1)
    if after and "@" in after[0]:
        raise ConfigError(
            "broker: an @ stands behind a /, ? or # in its URL: write / as %2F, ? as %3F and # as %23 in user and"
            " password, and @ as %40 in what follows the host"
        )


def split(url: str) -> SplitResult:
    """Take a URL with one host apart; its port is a number or None."""
    check_login(url.partition(":")[2])
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:  # whose words repeat a part of the URL
        raise _no_host() from None
    return parts


def host_and_port(host: str, port: int) -> str:
    """Write a host with its port, which is `port` unless it says another one."""
    try:
        parts = urlsplit(f"//{host}")
        given = parts.port
    except ValueError:
        raise _no_host() from None
    if not parts.hostname or parts.netloc != host:
        raise _no_host()
    return host if given is not None else f"{host.removesuffix(':')}:{port}"


def _no_host() -> ConfigError:
    return ConfigError(
        "broker: a host in its URL is none, or the port behind it is no port: write host:port with a number up to"
        " 65535, an IPv6 address as [::1]:port, and user and password percent-encoded (@ as %40)"
    )

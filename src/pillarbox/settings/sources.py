"""Where settings come from: a TOML file, the environment, flags. Each gives plain values with their path and origin."""

import re
import tomllib
from collections.abc import Collection, Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import NamedTuple

from pillarbox.core.secrets import without_secrets
from pillarbox.errors import ConfigError

DEFAULT_FILE = "pillarbox.toml"
PREFIX = "PILLARBOX_"
NOT_SETTINGS = frozenset(("PILLARBOX_CONFIG", "PILLARBOX_DEBUG"))


class Given(NamedTuple):
    """A value that somebody gave: for which setting, and where."""

    path: tuple[str, ...]
    value: object
    origin: str

    @property
    def key(self) -> str:
        return ".".join(self.path)


def find_file(path: str | Path | None, environment: Mapping[str, str]) -> Path | None:
    """Find the settings file: the one that is named, else pillarbox.toml in the current directory if it is there."""
    named = path or environment.get("PILLARBOX_CONFIG")
    if named:
        return Path(named)
    default = Path(DEFAULT_FILE)
    return default if default.is_file() else None


def from_file(path: Path) -> Iterator[Given]:
    """Read a TOML file."""
    origin = without_secrets(str(path))
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{origin}: cannot be read: {error.strerror}; `pillarbox init` writes one") from error
    try:
        tables = tomllib.loads(content.decode())
    except RecursionError:  # its traceback is a thousand lines long, and says nothing
        raise ConfigError(f"{origin}: its arrays or tables are nested too deeply; no setting needs that") from None
    except ValueError as error:
        what, line, column = _mistake(error, content)
        raise ConfigError(
            f"{origin}: line {line}, column {column}: {what}; mend it there, or compare with what"
            " `pillarbox init --config example.toml` writes"
        ) from error
    yield from _walk((), tables, origin)


def _mistake(error: ValueError, content: bytes) -> tuple[str, int, int]:
    """Say what is wrong in a file and where: the parser names the place in its words, or the end of the document."""
    if isinstance(error, UnicodeDecodeError):
        return f"not utf-8: {error.reason}", *_place(content[: error.start])
    what, _, where = str(error).partition(" (at ")
    if named := re.fullmatch(r"line (\d+), column (\d+)\)", where):
        return what, int(named[1]), int(named[2])
    return what, *_place(content)


def _place(before: bytes) -> tuple[int, int]:
    """Give line and column of what follows."""
    lines = before.decode().split("\n")
    return len(lines), len(lines[-1]) + 1


def _walk(path: tuple[str, ...], value: object, origin: str) -> Iterator[Given]:
    if isinstance(value, dict) and len(path) < 3:
        for name, below in value.items():
            yield from _walk((*path, name), below, origin)
    else:
        yield Given(path, value, origin)


def from_environment(
    environment: Mapping[str, str], known: Collection[str], open_tables: Collection[str]
) -> Iterator[Given]:
    """Read PILLARBOX_RELAY_BATCH and its like. A variable that looks like a misspelt one is refused; others are not
    ours (Kubernetes adds PILLARBOX_SERVICE_HOST and more for a service of that name)."""
    keys = {key.replace(".", "_").upper(): key for key in known}
    for variable, value in sorted(environment.items()):
        if not variable.startswith(PREFIX) or variable in NOT_SETTINGS:
            continue
        if any("\ud800" <= character <= "\udfff" for character in value):
            raise ConfigError(f"{variable} in the environment is not UTF-8")
        name = variable.removeprefix(PREFIX)
        table, _, rest = name.lower().partition("_")
        if name in keys:
            yield Given(tuple(keys[name].split(".")), value, variable)
        elif table in open_tables and rest:
            yield Given((table, rest), value, variable)
        elif near := get_close_matches(name, keys, 1, 0.8):
            raise ConfigError(f"{variable} in the environment is no setting: did you mean {PREFIX}{near[0]}?")


def from_flags(flags: Mapping[str, object]) -> Iterator[Given]:
    """Take flags: keys are `database`, `relay.batch`, `topic.order-events.order`; None means not given."""
    for key, value in flags.items():
        if value is not None:
            yield Given(
                _path_of(key), value, f"--{key}" if key in ("database", "broker") else f"--set {without_secrets(key)}"
            )


def _path_of(key: str) -> tuple[str, ...]:
    table, _, rest = key.partition(".")
    if table == "topic" and "." in rest:
        topic, _, name = rest.rpartition(".")
        return table, topic.strip('"'), name
    return tuple(key.split("."))

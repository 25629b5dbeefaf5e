"""Wording: how counts, instants and commands are written for people, in findings and on the command line."""

from datetime import datetime
from shlex import quote

from pillarbox.core.secrets import without_secrets
from pillarbox.settings import Settings


def counted(count: int, noun: str) -> str:
    """Write a count with its noun: "1 event", "2,000 events"."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def sized(count: int) -> str:
    """Write a number of bytes in one unit, rounded: "512 bytes", "20 MB"."""
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= size:
            return f"{count / size:,.1f} {unit}" if count < 10 * size else f"{count // size:,} {unit}"
    return counted(count, "byte")


def at(instant: datetime) -> str:
    """Write an instant, to the second."""
    return f"{instant:%Y-%m-%d %H:%M:%S} UTC"


def command(words: str, settings: Settings, *, broker: bool = False) -> str:
    """Write a command that the reader can run: with the flags that this one was given, without what a file says."""
    parts = ["pillarbox", words]
    if settings.file is not None and settings.file != "pillarbox.toml":
        parts.append(f"--config {quote(settings.file)}")
    for key in ("database", "broker") if broker else ("database",):
        value = getattr(settings, key)
        if value is None:
            parts.append(f"--{key} URL")
        elif settings.origins.get(key, "--").startswith("--"):
            parts.append(f"--{key} {quote(without_secrets(value))}")
    parts += [
        f"--set outbox.{key}={getattr(settings.outbox, key)}"
        for key in ("schema", "prefix")
        if settings.origins.get(f"outbox.{key}", "").startswith("--")
    ]
    return " ".join(parts)


def resume_command(topic: str, settings: Settings) -> str:
    """Write the command that ends a pause."""
    return command(f"resume {quote(topic)}", settings)

"""Pillarbox: the transactional outbox and inbox for Python. Public names and nothing else."""

from typing import TYPE_CHECKING

from pillarbox.core.event import Event
from pillarbox.errors import (
    AddError,
    BrokerUnavailable,
    CodecError,
    ConfigError,
    DecodeError,
    DuplicateEvent,
    EncodeError,
    HandlerError,
    HandlerFailed,
    HandlerMissing,
    HandlerSignal,
    InvalidEvent,
    LaneLost,
    MissingExtra,
    NoTransaction,
    PillarboxError,
    PublishError,
    PublishRejected,
    PublishTimeout,
    Reject,
    RetryLater,
    SchemaMismatch,
    StoreError,
    StoreUnavailable,
)

if TYPE_CHECKING:
    from pillarbox.settings import Settings
    from pillarbox.wiring import Consumer, Relay

__version__ = "0.1.0.dev0"

__all__ = [
    "AddError",
    "BrokerUnavailable",
    "CodecError",
    "ConfigError",
    "Consumer",
    "DecodeError",
    "DuplicateEvent",
    "EncodeError",
    "Event",
    "HandlerError",
    "HandlerFailed",
    "HandlerMissing",
    "HandlerSignal",
    "InvalidEvent",
    "LaneLost",
    "MissingExtra",
    "NoTransaction",
    "PillarboxError",
    "PublishError",
    "PublishRejected",
    "PublishTimeout",
    "Reject",
    "Relay",
    "RetryLater",
    "SchemaMismatch",
    "Settings",
    "StoreError",
    "StoreUnavailable",
]


def __getattr__(name: str) -> object:
    # An application that only adds events must not pay for an event loop.
    if name in ("Relay", "Consumer"):
        from pillarbox import wiring

        return getattr(wiring, name)
    if name == "Settings":
        from pillarbox.settings import Settings

        return Settings
    raise AttributeError(f"module 'pillarbox' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)

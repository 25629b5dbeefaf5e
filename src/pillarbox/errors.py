"""The whole error tree. The class answers three questions: whose fault, will trying again help, what to do next.

PillarboxError
├── ConfigError               settings wrong
│   └── MissingExtra          names the extra to install
├── AddError                  outbox.add() refused
│   ├── InvalidEvent          (also ValueError)
│   ├── DuplicateEvent        this idempotency key is there already; the transaction stays usable
│   └── NoTransaction         the connection is in autocommit
├── CodecError                EncodeError · DecodeError
├── StoreError
│   ├── StoreUnavailable      try again
│   └── SchemaMismatch        names the migrate command
├── PublishError
│   ├── BrokerUnavailable     pause; no attempt counted
│   ├── PublishTimeout        try again; counted, if the broker answered others meanwhile
│   └── PublishRejected       never again: dead
├── LaneLost                  another relay holds the lane, or the server is not the one it was: forget and reload
└── HandlerError              HandlerFailed · HandlerMissing

HandlerSignal  (not an error: what a handler may raise)
├── RetryLater(delay)
└── Reject(reason)
"""

from datetime import timedelta

LONGEST_DELAY = timedelta(days=365)


class PillarboxError(Exception):
    """Everything that Pillarbox raises on purpose."""


class ConfigError(PillarboxError):
    """The settings are wrong; the message names the setting and the cure."""


class MissingExtra(ConfigError):
    """An optional library is not installed; the message is the line that installs it."""

    def __init__(self, extra: str, needed_for: str) -> None:
        super().__init__(f"{needed_for} needs the extra '{extra}': pip install 'pillarbox[{extra}]'")
        self.extra = extra


class AddError(PillarboxError):
    """`outbox.add()` refused; nothing was written."""


class InvalidEvent(AddError, ValueError):
    """The event cannot be stored or published as it is; the message names the field and what to do."""


class DuplicateEvent(AddError):
    """An event with this idempotency key was added before; the transaction stays usable."""


class NoTransaction(AddError):
    """The connection is in autocommit, so the event could not be atomic with anything."""


class CodecError(PillarboxError):
    """A value could not be turned into bytes, or bytes into a value."""


class EncodeError(CodecError):
    """The value cannot be written in the format asked for."""


class DecodeError(CodecError):
    """The bytes are not what their content type or the handler's model says."""

    def __init__(self, text: str, brief: str | None = None) -> None:
        super().__init__(text)
        self.brief = brief
        """What it says without anything that the event carries, if the whole says more: for logs."""


class StoreError(PillarboxError):
    """The database did not do what was asked."""


class StoreUnavailable(StoreError):
    """The database is away, locked or full; trying again helps."""


class SchemaMismatch(StoreError):
    """The tables are missing, older or newer than this version; the message names the command."""


class PublishError(PillarboxError):
    """A message was not accepted; the class says whether to try again."""

    brief: str | None = None
    """What it says without words of others, who may repeat what the event carries: for logs and traces. None: it says
    nothing that they must not have."""

    def __init__(self, *words: object, brief: str | None = None) -> None:
        super().__init__(*words)
        self.brief = brief


class BrokerUnavailable(PublishError):
    """The broker is away: pause, count nothing."""


class PublishTimeout(PublishError):
    """The broker answered others of the same send but not this one: try again, counted."""


class PublishRejected(PublishError):
    """The broker will never take this message: dead."""


class LaneLost(PillarboxError):
    """Another relay holds the lane, or the server is not the one it was: forget everything and reload."""


class HandlerError(PillarboxError):
    """A message could not be handled."""


class HandlerFailed(HandlerError):
    """The handler raised or broke its contract."""

    def __init__(self, text: str, brief: str | None = None) -> None:
        super().__init__(text)
        self.brief = brief
        """What it says without the words of an exception, which may have what the event carries: for logs."""


class HandlerMissing(HandlerError):
    """No handler is registered for this type of event."""


class HandlerSignal(Exception):
    """How a handler tells the inbox what to do with this event."""


class RetryLater(HandlerSignal):
    """Try this event again after `delay` (a timedelta or seconds, a year at most); counted as an attempt."""

    def __init__(self, delay: timedelta | float, reason: str = "the handler asked to try later") -> None:
        super().__init__(reason)
        seconds = delay.total_seconds() if isinstance(delay, timedelta) else delay
        if seconds != seconds:
            raise ValueError(f"RetryLater: {delay} is no number of seconds")
        self.delay = timedelta(seconds=min(max(seconds, 0), LONGEST_DELAY.total_seconds()))


class Reject(HandlerSignal):
    """Never try this event again: it becomes a dead letter with this reason."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

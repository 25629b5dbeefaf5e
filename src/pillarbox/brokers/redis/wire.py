"""The wire: one connection to the server, opened when it is needed, and what the server's errors mean."""

import asyncio
from collections.abc import Sequence
from typing import Any

from pillarbox.brokers.redis.options import Options
from pillarbox.core.retry import words_of
from pillarbox.errors import BrokerUnavailable, ConfigError, MissingExtra, PublishError, PublishRejected

try:
    from hiredis import pack_command
    from redis import exceptions
    from redis.asyncio import Connection, SSLConnection
except ModuleNotFoundError as error:
    raise MissingExtra("redis", "a redis:// broker") from error

GOODBYE = 1.0
"""How long the end of a connection is waited for, in seconds."""
HANDSHAKE = 4.0
"""How long a server with TLS may take until it has let us in, in seconds: less than anybody waits for an answer."""

# redis-py takes the code off the words of these, and people search for it; it also takes off ERR.
_CODES: tuple[tuple[type[Exception], str], ...] = (
    (exceptions.OutOfMemoryError, "OOM"),
    (exceptions.ReadOnlyError, "READONLY"),
    (exceptions.NoPermissionError, "NOPERM"),
    (exceptions.BusyLoadingError, "LOADING"),
    (exceptions.MasterDownError, "MASTERDOWN"),
    (exceptions.ClusterDownError, "CLUSTERDOWN"),
    (exceptions.TryAgainError, "TRYAGAIN"),
    (exceptions.ClusterCrossSlotError, "CROSSSLOT"),
    (exceptions.MovedError, "MOVED"),
    (exceptions.AskError, "ASK"),
    (exceptions.ExecAbortError, "EXECABORT"),
    (exceptions.NoScriptError, "NOSCRIPT"),
)
_TEMPORARY = (
    "OOM",
    "READONLY",
    "LOADING",
    "MASTERDOWN",
    "CLUSTERDOWN",
    "TRYAGAIN",
    "MISCONF",
    "BUSY ",
    "NOREPLICAS",
    "WAITAOF cannot be used",
)
_ELSEWHERE = ("MOVED", "ASK ", "CROSSSLOT")
_IN_SCRIPT = ("ACL failure in script", "The user executing the script")
"""What is said of a script that does what its user may not: newer servers, and 7.0."""
_FOR_GOOD = ("WRONGTYPE", "NOPERM", "The stream has exhausted")
_SETTINGS = ("unknown command", "DB index is out of range", "invalid DB index", "SELECT is not allowed")


class Wire:
    """A connection. What breaks it off raises BrokerUnavailable, and the next question opens it anew."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._connection: Connection | None = None

    @property
    def is_open(self) -> bool:
        return self._connection is not None

    async def ask(self, commands: Sequence[bytes], answers: int, patience: float | None = None) -> list[Any]:
        """Write packed commands at once and give the server's answers; an error that it answers with is one of them.

        Raises BrokerUnavailable or ConfigError if there is no connection, or no answer in `patience` seconds; one that
        is cancelled closes it.
        """
        given: list[Any] = []
        try:
            async with asyncio.timeout(patience):
                connection = self._connection or await self._open()
                await connection.send_packed_command(commands, check_health=False)
                while len(given) < answers:
                    given.append(await _answer(connection))
        except BaseException as error:
            await self.close()
            if isinstance(error, exceptions.RedisError | OSError):  # TimeoutError is an OSError
                raise meaning(error, self._options, given[-1] if given else None) from error
            raise
        return given

    async def close(self) -> None:
        """Let go of the connection, without a word."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.disconnect(nowait=True)

    async def finish(self) -> None:
        """Let go of the connection for good: TLS takes a moment to say goodbye, and the loop may end after this."""
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                async with asyncio.timeout(GOODBYE):
                    await connection.disconnect()
            except (exceptions.RedisError, OSError):
                pass  # the server is not there to hear it

    async def _open(self) -> Connection:
        options = self._options
        kind = Connection if options.tls is None else SSLConnection
        connection = kind(
            host=options.host,
            port=options.port,
            db=options.database,
            username=options.username,
            password=options.password,
            client_name="pillarbox",
            protocol=2,
            socket_timeout=None,
            socket_connect_timeout=None,
            socket_keepalive=True,
            **(options.tls or {}),
        )
        self._connection = connection
        try:
            async with asyncio.timeout(None if options.tls is None else HANDSHAKE):
                await connection.connect()  # type: ignore[no-untyped-call]
        except TimeoutError as error:
            if options.tls is None:
                raise
            # A server without TLS waits for the end of a line, and says nothing.
            raise BrokerUnavailable(
                f"Redis at {options.address} did not let us in within {HANDSHAKE:g} s: perhaps this port does not speak"
                " TLS, which rediss:// demands"
            ) from error
        return connection


async def _answer(connection: Connection) -> Any:
    try:
        return await connection.read_response(disable_decoding=True)
    except exceptions.ResponseError as error:
        return error


def packed(*command: str | bytes | int) -> bytes:
    """Write a command as the server reads it."""
    data: bytes = pack_command(command)  # type: ignore[arg-type]  # its stub says a tuple of one
    return data


def is_error(answer: object) -> bool:
    """Say whether the server answered with an error."""
    return isinstance(answer, exceptions.RedisError)


def words(error: BaseException) -> str:
    """Give the server's own words, with their code."""
    code = next((code for kind, code in _CODES if isinstance(error, kind)), "")
    text = words_of(error).partition(", with args beginning with")[0]  # there it quotes what was sent
    return f"{code} {text}" if code and not text.startswith(code) else text


def meaning(error: BaseException, options: Options, before: object = None) -> PublishError | ConfigError:
    """Say what an error means for what was asked; `before` is what the server answered last before it broke off."""
    said = words(error).removesuffix(".")
    if isinstance(before, exceptions.ResponseError):
        said = f"{said}. It broke off after saying: {words(before)}"
    if isinstance(error, exceptions.AuthenticationError | exceptions.AuthenticationWrongNumberOfArgsError):
        return BrokerUnavailable(
            f"Redis at {options.address} does not let us in: {said}; mend user and password there, or in the broker's "
            "URL, which is read at the start"
        )
    if said.startswith(_IN_SCRIPT) or (said.startswith("NOPERM") and "to run the" in said):
        return BrokerUnavailable(f"Redis at {options.address} says: {said}; grant the user this right (ACL SETUSER)")
    if said.startswith(_ELSEWHERE):
        return ConfigError(f"broker: {options.address} is part of a cluster ({said}); name a server that is none")
    if said.startswith(_SETTINGS):
        return ConfigError(f"broker: {options.address} says: {said}; see docs/guides/broker-redis.md")
    if said.startswith(_FOR_GOOD):
        return PublishRejected(f"Redis refuses it: {said}")
    if said.startswith(_TEMPORARY):
        return BrokerUnavailable(f"Redis at {options.address} takes nothing now: {said}")
    if isinstance(error, exceptions.ConnectionError | exceptions.TimeoutError | OSError):
        return BrokerUnavailable(f"Redis at {options.address} cannot be reached: {said}")
    return PublishError(f"Redis says: {said}")

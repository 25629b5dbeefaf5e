"""Which stream takes a subject, and whether what it acknowledges can be relied on."""

from pillarbox.brokers.nats.connection import Client, Connection
from pillarbox.brokers.nats.options import NatsOptions
from pillarbox.errors import BrokerUnavailable, PublishError, PublishRejected

API = "$JS.API"


def check_subject(topic: str) -> None:
    """Refuse a topic that is no subject, or one that would be a command to the server."""
    if (
        not topic
        or topic.startswith(("$", "_INBOX."))
        or any(character.isspace() or character in "*>\0" for character in topic)
        or not all(topic.split("."))
    ):
        raise PublishRejected(
            f"the topic {topic!r} is no subject to publish on: a subject has no spaces, no * and >, no empty part"
            " between dots, and does not begin with $"
        )


async def find_stream(connection: Connection, client: Client, topic: str) -> str | None:
    """Ask which stream takes a subject; None if no stream does."""
    answer = await connection.ask(client, f"{API}.STREAM.NAMES", {"subject": topic})
    if error := answer.get("error"):
        raise BrokerUnavailable(f"JetStream: {error.get('description')}")
    names = answer.get("streams") or []
    return names[0] if names else None


def no_stream(topic: str, words: str = "") -> PublishRejected:
    """Say that a subject leads nowhere."""
    return PublishRejected(
        f"no stream takes the subject {topic!r}{words}: create one, or add the subject to a stream, and retry the event"
    )


class Streams:
    """The streams of the topics that were published on, asked once; forgotten when something does not fit any more."""

    def __init__(self, connection: Connection, options: NatsOptions) -> None:
        self._connection, self._options = connection, options
        self.known: dict[str, str] = {}
        """The stream of each topic that was asked for."""
        self._numbers: dict[str, int] = {}
        """The last number of each stream that stored something for us."""

    def forget(self, topic: str) -> None:
        """Ask again the next time."""
        self.known.pop(topic, None)

    def forget_all(self) -> None:
        """Ask for everything again: other servers, or other streams of the same names, may be there now."""
        self.known.clear()
        self._numbers.clear()

    def count(self, stream: str, number: int) -> bool:
        """Note the number of a message that was stored, 0 for a copy; False if the stream counts anew, so it is not the
        one that was asked about."""
        if 0 < number <= self._numbers.get(stream, 0):
            return False
        if number:
            self._numbers[stream] = number
        return True

    async def find(self, client: Client, topic: str) -> str | PublishError:
        """Give the stream that takes a topic, or why nothing can be published on it now."""
        try:
            check_subject(topic)
            stream = self._options.stream or await self._inspected(client, topic)
        except PublishError as error:
            return error
        self.known[topic] = stream
        return stream

    async def _inspected(self, client: Client, topic: str) -> str:
        stream = await find_stream(self._connection, client, topic)
        if stream is None:
            raise no_stream(topic)
        answer = await self._connection.ask(client, f"{API}.STREAM.INFO.{stream}", {})
        config = answer.get("config")
        if not isinstance(config, dict):
            raise BrokerUnavailable(f"JetStream does not describe the stream {stream}: {answer.get('error')}")
        if config.get("no_ack"):
            raise BrokerUnavailable(f"the stream {stream} acknowledges nothing: take no_ack off it")
        if config.get("storage") != "file" and not self._options.unsafe:
            raise BrokerUnavailable(
                f"the stream {stream} keeps its messages in memory, so they would be gone after a restart: give it file"
                " storage, or say nats.unsafe = true"
            )
        return stream

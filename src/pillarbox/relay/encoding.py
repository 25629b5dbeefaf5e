"""Encoding: entries → messages, what goes next already while the ones before it are on their way. Used by the pump."""

from collections.abc import Callable, Sequence

from pillarbox.core.convoy import Ticketed
from pillarbox.core.entry import Entry
from pillarbox.core.message import Message, encode, encode_all
from pillarbox.core.retry import Untouched, Verdict, words_of
from pillarbox.core.routing import Line, Topics
from pillarbox.errors import EncodeError

Ready = Sequence[tuple[int, Entry]]
"""Entries with their tickets, in the order of these."""


class Encoding:
    """Makes messages. `judge` says what becomes of an entry that cannot be one."""

    def __init__(self, topics: Topics, judge: Callable[[int, Entry, str], Verdict]) -> None:
        self._topics, self._judge = topics, judge
        self._ahead: list[Message] = []
        self.unsendable: list[tuple[int, Verdict]] = []
        """Verdicts that nobody has taken yet, on what was not sent."""

    def forget(self) -> None:
        """Drop what was made ahead, and what could not be sent."""
        self._ahead = []
        self.unsendable = []

    def make_ahead(self, upcoming: Ready) -> None:
        """Encode what goes next, unless that is done, or something of it is not for sending."""
        if upcoming and not self._is_made(upcoming):
            try:
                self._ahead = self._encoded(upcoming)
            except EncodeError:
                self._ahead = []  # judged when its turn has come

    def messages(self, ready: Ready) -> list[Message]:
        """Encode what may go; what cannot be encoded is judged at once, and its line does not go without it."""
        if self._is_made(ready):
            made, self._ahead = self._ahead, []
            return made
        try:
            return self._encoded(ready)
        except EncodeError:
            return self._one_by_one(ready)

    def _is_made(self, ready: Ready) -> bool:
        """Tickets are given once and in a row, so the same number between the same two are the same ones."""
        made = self._ahead
        return len(made) == len(ready) > 0 and made[0].ticket == ready[0][0] and made[-1].ticket == ready[-1][0]

    def _encoded(self, ready: Ready) -> list[Message]:
        formats = self._topics.formats
        if not formats and isinstance(ready, Ticketed):
            return encode_all(ready.items, ready.first)
        if not formats and ready[-1][0] - ready[0][0] == len(ready) - 1:
            return encode_all([entry for _, entry in ready], ready[0][0])
        return [encode(entry, ticket, formats.get(entry.topic, "plain")) for ticket, entry in ready]

    def _one_by_one(self, ready: Ready) -> list[Message]:
        messages, topics = [], self._topics
        held = set[Line | None]()
        for ticket, entry in ready:
            if held and topics.line_of(entry) in held - {None}:
                self.unsendable.append((ticket, Untouched()))
                continue
            try:
                messages += self._encoded([(ticket, entry)])
            except EncodeError as error:
                self.unsendable.append((ticket, self._judge(ticket, entry, words_of(error))))
                held.add(topics.line_of(entry))
        return messages

"""A proxy for RabbitMQ that throws single confirmations away."""

import asyncio
import struct

from servers.answer_loser import AnswerLoser

_FRAME = struct.Struct(">BHI")
_CONFIRM = struct.Struct(">HHQB")
_METHOD, _BASIC, _ACK, _NACK = 1, 60, 80, 120


class ConfirmLoser(AnswerLoser):
    """Reads the server's frames. A confirmation of several messages is passed on as one for each, those that were
    chosen are left out, and all that come before the first of them are gathered into one; everything else passes."""

    async def answers(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        confirmations = _Confirmations(self)
        while True:
            head = await reader.readexactly(_FRAME.size)
            kind, _, size = _FRAME.unpack(head)
            rest = await reader.readexactly(size + 1)
            if kind == _METHOD and size == _CONFIRM.size:
                basic, method, tag, flags = _CONFIRM.unpack(rest[:-1])
                if basic == _BASIC and method in (_ACK, _NACK):
                    passed = confirmations.passed(tag, multiple=bool(flags & 1), gathers=method == _ACK)
                    writer.writelines(head + _CONFIRM.pack(_BASIC, method, *one) + b"\xce" for one in passed)
                    continue
            writer.write(head + rest)
            await writer.drain()


class _Confirmations:
    """Those of one connection, where the tags of messages begin at 1."""

    def __init__(self, loser: AnswerLoser) -> None:
        self._loser, self._before = loser, loser.seen
        self._confirmed: set[int] = set()

    def passed(self, tag: int, *, multiple: bool, gathers: bool) -> list[tuple[int, bool]]:
        """Take a confirmation; give the tags to pass on, each with whether it stands for all before it."""
        tags = [one for one in range(1 if multiple else tag, tag + 1) if one not in self._confirmed]
        self._confirmed.update(tags)
        kept = [one for one in tags if not self._loser.loses(self._before + one - 1)]
        last = self._loser.first_to_lose - self._before if gathers else 0
        early = {one for one in kept if one <= last}
        passed = [(one, False) for one in kept if one not in early]
        if early and self._confirmed.issuperset(range(1, last + 1)):
            passed.append((last, True))
        return passed

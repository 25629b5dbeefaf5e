"""A proxy for RabbitMQ that throws single confirmations away."""

import asyncio
import struct
from collections.abc import Sequence

from servers.answer_loser import AnswerLoser

_FRAME = struct.Struct(">BHI")
_CONFIRM = struct.Struct(">HHQB")
_METHOD, _BASIC, _ACK, _NACK = 1, 60, 80, 120


class ConfirmLoser(AnswerLoser):
    """Reads the server's frames. A confirmation of several messages is passed on as one for each, and those that were
    chosen are left out; everything else passes as it is."""

    async def answers(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        confirmed, early = 0, set[int]()
        while True:
            head = await reader.readexactly(_FRAME.size)
            kind, _, size = _FRAME.unpack(head)
            rest = await reader.readexactly(size + 1)
            if kind == _METHOD and size == _CONFIRM.size:
                basic, method, tag, flags = _CONFIRM.unpack(rest[:-1])
                if basic == _BASIC and method in (_ACK, _NACK):
                    tags = [one for one in range(confirmed + 1, tag + 1) if one not in early] if flags & 1 else [tag]
                    confirmed, early = (tag, set()) if flags & 1 else (confirmed, early | {tag})
                    writer.writelines(self._passed(head, method, tags))
                    continue
            writer.write(head + rest)
            await writer.drain()

    def _passed(self, head: bytes, method: int, tags: Sequence[int]) -> list[bytes]:
        return [head + _CONFIRM.pack(_BASIC, method, tag, 0) + b"\xce" for tag in tags if not self.loses()]

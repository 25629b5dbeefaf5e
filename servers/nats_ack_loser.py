"""A proxy for NATS that throws single acknowledgements of JetStream away."""

import asyncio

from servers.answer_loser import AnswerLoser


class NatsAckLoser(AnswerLoser):
    """Reads the server's messages; the acknowledgements that were chosen are left out, all else passes."""

    async def answers(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            verb, *words = line.split()
            payload = b""
            if verb in (b"MSG", b"HMSG"):
                payload = await reader.readexactly(int(words[-1]) + 2)
            if not (payload.startswith(b'{"stream":') and self.loses(self.seen)):
                writer.write(line + payload)
                await writer.drain()

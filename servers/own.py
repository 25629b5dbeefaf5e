"""A server of our own that may be killed: in a directory and on a port that nobody else has."""

import shutil
from pathlib import Path
from typing import Self

from servers.process import STARTED, AddressInUse, Server, start_on_free_port


class OwnServer:
    """One program with one port, run as our own child. Who derives from it makes `server` and `directory`."""

    server: Server
    directory: Path
    port = 0
    """0 until it was started."""

    @property
    def title(self) -> str:
        """Its name and version, once it answers."""
        raise NotImplementedError

    def prepare(self) -> None:
        """Write down what it is told about its port."""
        raise NotImplementedError

    def start(self) -> None:
        """Start it and wait until it answers: the first time on a free port, then on the same one, with what it has."""
        if self.port:
            self.server.start()
        else:
            start_on_free_port(self._start_on)
            STARTED.add(self.title)

    def stop(self) -> None:
        """Stop it cleanly."""
        self.server.stop()

    def kill(self) -> None:
        """Send SIGKILL."""
        self.server.kill()

    def restart(self) -> None:
        """Start it again on the same port, after a clean stop if it still runs."""
        self.server.restart()

    def freeze(self) -> None:
        """Let connections stay open and nothing answer."""
        self.server.freeze()

    def thaw(self) -> None:
        """Let it go on."""
        self.server.thaw()

    def close(self) -> None:
        """End it and remove its directory."""
        self.server.kill()
        shutil.rmtree(self.directory)

    def __enter__(self) -> Self:
        if not self.server.running:
            self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _start_on(self, port: int) -> None:
        self.port = port
        self.prepare()
        try:
            self.server.start()
        except AddressInUse:
            self.port = 0
            raise

"""systemd: tells whoever started this process how it fares, in the protocol of sd_notify(3): lines in a datagram.

Only where NOTIFY_SOCKET says that somebody listens. Whoever listens and has gone is no reason to fail.
"""

import os
import socket
from collections.abc import Mapping
from typing import Self


class Systemd:
    """The service manager's socket; `watchdog` is after how many seconds of silence it ends us, if it does."""

    def __init__(self, place: str, watchdog: float | None) -> None:
        self.watchdog = watchdog
        self._place = "\0" + place[1:] if place.startswith("@") else place
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._socket.setblocking(False)  # a daemon does not wait for its supervisor

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Self | None:
        """Give the one that the environment names; None if nobody wants to be told."""
        place = environment.get("NOTIFY_SOCKET", "")
        if not place.startswith(("/", "@")):
            return None
        microseconds = environment.get("WATCHDOG_USEC", "")
        is_ours = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        watched = is_ours and microseconds.isdecimal() and int(microseconds) > 0
        return cls(place, int(microseconds) / 1_000_000 if watched else None)

    def tell(self, *assignments: str) -> None:
        """Tell something, such as READY=1."""
        try:
            self._socket.sendto("\n".join(assignments).encode(), self._place)
        except OSError:
            pass  # nobody listens any more, or not fast enough; the next word says it too

    def close(self) -> None:
        """Let go of the socket."""
        self._socket.close()

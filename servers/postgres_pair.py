"""A primary and its standby, for failovers."""

from typing import Self

from servers.fault_proxy import FaultProxy
from servers.pgbouncer import PgBouncer
from servers.postgres import Postgres


class Pair:
    """A primary and its asynchronous standby, with a line between them that can be cut, and two ways to the primary:
    PgBouncer, whose clients notice nothing of a failover, and an address that moves."""

    def __init__(self, primary: Postgres, database: str) -> None:
        self.primary, self.database = primary, database
        self.line, self.address = FaultProxy(primary.port), FaultProxy(primary.port)
        self.pooler = PgBouncer(primary.port)
        self.standby = primary  # until it is started

    def start(self) -> None:
        self.line.start()
        self.address.start()
        self.pooler.start()
        self.standby = self.primary.standby(through=self.line.port)

    def close(self) -> None:
        self.pooler.close()
        self.address.close()
        if self.standby is not self.primary:
            self.standby.close()
        self.line.close()

    @property
    def old(self) -> str:
        return self.primary.url(self.database)

    @property
    def new(self) -> str:
        return self.standby.url(self.database)

    @property
    def pooled(self) -> str:
        return self.pooler.url(self.database)

    @property
    def direct(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.address.port}/{self.database}"

    def part(self) -> None:
        """Cut the standby off; it has everything up to here, and nothing that comes later."""
        self.standby.wait_until_replayed(self.primary)
        self.line.cut()

    def fail_over(self) -> None:
        """Kill the primary, promote the standby, and lead everybody there."""
        self.primary.kill()
        self.standby.promote()
        self.address.target = self.standby.port
        self.address.reset()
        self.address.heal()
        self.pooler.point_to(self.standby.port)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

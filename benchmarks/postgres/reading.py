"""How fast the store reads and settles, without a relay and a broker, beside a plain SELECT by a bare client."""

from benchmarks.measure import Goal, Progress, Row, in_rounds
from benchmarks.postgres import shop
from pillarbox.bench import reading
from pillarbox.daemon import collect_rarely
from servers.postgres import RunningPostgres


def rows(server: RunningPostgres, quick: bool, tell: Progress) -> list[Row]:
    count = 10_000 if quick else 200_000
    tell(f"filling an outbox with {count:,} events")
    with shop.database(server, count) as url:
        place = shop.place_at(url)

        def both() -> tuple[float, float]:
            shop.rewind(url)
            collect_rarely()  # as the relay's process does; for both
            return reading.store(place, count), reading.select(place, count)

        return [in_rounds("PostgresStore.entries() and settle()", "events/s", both, tell, Goal(">=", 0.5))]

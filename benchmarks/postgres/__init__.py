"""Benchmarks on PostgreSQL: one real server for all of them, with fsync on."""

from benchmarks.postgres.deadly import rows as deadly_rows
from benchmarks.postgres.drain import deep_rows as depth_rows
from benchmarks.postgres.drain import rows as drain_rows
from benchmarks.postgres.latency import rows as latency_rows
from benchmarks.postgres.operating import rows as operating_rows
from benchmarks.postgres.programs import idle_rows, takeover_rows
from benchmarks.postgres.reading import rows as reading_rows
from benchmarks.postgres.receiving import rows as receiving_rows
from benchmarks.postgres.shop import durable_server
from benchmarks.postgres.writing import rows as writing_rows

__all__ = [
    "deadly_rows",
    "depth_rows",
    "drain_rows",
    "durable_server",
    "idle_rows",
    "latency_rows",
    "operating_rows",
    "reading_rows",
    "receiving_rows",
    "takeover_rows",
    "writing_rows",
]

"""Benchmarks over real brokers: one relay drains PostgreSQL, beside the same client without an outbox."""

from benchmarks.brokers.drain import debezium_rows
from benchmarks.brokers.drain import rows as drain_rows

__all__ = ["debezium_rows", "drain_rows"]

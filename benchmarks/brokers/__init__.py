"""Benchmarks over real brokers: one relay drains PostgreSQL, beside the same client without an outbox."""

from benchmarks.brokers.beside_debezium import latency_rows as debezium_latency_rows
from benchmarks.brokers.beside_debezium import rows as debezium_rows
from benchmarks.brokers.drain import rows as drain_rows

__all__ = ["debezium_latency_rows", "debezium_rows", "drain_rows"]

"""Starts real servers, and a network that fails, as plain processes for tests and benchmarks: one file per server."""

"""Benchmarks: ratios against a reference in the same run, never in a test. `make bench` runs them all."""

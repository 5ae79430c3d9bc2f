"""Benchmarks, and the synthetic runs they and the tests read."""

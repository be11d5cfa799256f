"""Suwi: a Kafka-compatible event log."""

__version__ = "0.1.0"

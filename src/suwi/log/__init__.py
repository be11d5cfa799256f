"""Segments and checkpoints: one partition's records on disk, in Apache Kafka's own files.

Entrances: `LogDirectory` (a data directory and what lies in it) and `PartitionLog` (one partition).
"""

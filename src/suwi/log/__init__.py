"""The log layer: one partition's records on disk, in Apache Kafka's file formats.

Entrances: `LogDirectory` (a data directory and its partitions) and `PartitionLog` (one partition).
"""

"""Reads the files of a data directory, Suwi's or Apache Kafka's, offline and read-only.

`file_types` determines the type of each file; `segments`, `indexes` and `small_files` read them.
"""

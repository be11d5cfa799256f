"""Showing the files of a data directory, Suwi's or Apache Kafka's, offline and read-only.

`command` finds out what each file is; `segments`, `indexes` and `small_files` read them. Each
reader yields an `Entry` for what it finds and a `Damage` for what is wrong, in order.
"""

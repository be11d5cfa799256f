"""Shows the files of a data directory, Suwi's or Apache Kafka's, offline and read-only.

`command` determines the type of each file; `segments`, `indexes` and `small_files` read them. Each
reader yields an `Entry` for each item and a `Damage` for each problem, in order.
"""

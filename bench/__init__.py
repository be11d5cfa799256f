"""How fast, how quick and how small the broker is, measured the same way every time.

`python -m bench` runs every job beside Apache Kafka, `--quick` a short form of it, `--only JOB` one
of them. Systems take turns within each repetition, so that a slow moment of the machine hits all of
them. Beside wall time stands the server's CPU time for a piece of work, which hardly depends on
what else the machine does.

`jobs` says what is measured, `clients` holds the loads (each a process of its own), `homes` and
`servers` the systems under load, `goals` what they should reach; `report` and `chart` write
`docs/benchmarks/`.
"""

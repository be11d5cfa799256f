"""Benchmarks: throughput, latency, start-up time and memory of the broker.

`python -m bench` runs every job with Suwi and Apache Kafka, `--quick` a short form of it, `--only
JOB` one of them. The systems alternate within each repetition, so that a slow moment of the machine
affects all of them. Beside wall time the server's CPU time is measured, which hardly depends on
what else the machine does.

`jobs` defines what is measured, `clients` the loads (each in its own process), `homes` and
`servers` the systems under load, `goals` what they should reach. `pages` and `overview` write
`docs/benchmarks/`; `python -m bench --redraw` does so without a run.
"""

"""How fast, how quick and how small the broker is, measured the same way every time.

`python -m bench` runs every job, `--quick` a short form of it, `--long` adds the traffic that shows
whether memory grows. Systems take turns within each repetition, so that a slow moment of the
machine hits all of them. The figure to trust is the server's CPU time for a piece of work: unlike
wall time it hardly depends on what else the machine does.

`jobs` says what is measured, `clients` holds the loads (each a process of its own), `servers` the
systems under load, `report` and `chart` write `docs/benchmarks/`.
"""

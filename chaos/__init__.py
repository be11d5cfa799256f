"""Chaos tests: a pipeline into a Delta table while everything around it is killed.

`make chaos` runs it; see `docs/spark-sinks.md` for what it shows.
"""

"""Runs of whole clusters in simulated time, each from a seed: workloads, faults and checkers.

`python -m simulation` and `make sim` run them, `docs/simulation.md` describes them. The simulated
machines, network and disks are `suwi.sim`; nothing in `suwi` uses this package.
"""

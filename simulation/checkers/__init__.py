"""What the histories of clients must satisfy at the end of a run: groups, their offsets, copies.

The invariants of replicas, which are checked after every step, are in `suwi.sim.checkers`.
"""

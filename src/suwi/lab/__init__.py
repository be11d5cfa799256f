"""The lab: scenarios of lost and duplicate records, played on the production code.

A scenario (`scenario`) is a text file; `stage` plays it on a simulated cluster, `recorder` writes
down what happens as `events`. `suwi lab` prints them, docs/lab.md describes them.
"""

"""A cluster of real processes on this machine: brokers, a ZooKeeper ensemble, and faults.

`cluster.LocalCluster` is what `suwi cluster start` and the chaos runs use.
"""

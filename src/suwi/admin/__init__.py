"""Administration: what the command line and the web console both ask, judge and change.

Functions take a client's `Cluster`, or files, and return data. Nothing here prints, and nothing
imports broker code: it works against any running cluster.
"""

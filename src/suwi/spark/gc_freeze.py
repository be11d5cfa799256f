"""Excludes loaded modules from the garbage collection of Spark's Python workers.

PySpark collects garbage after every task, before the worker takes the next one. With Arrow, numba
and Spark itself loaded that looks at 130,000 objects, which are not garbage: 30 ms each time, most
of the time of a small micro-batch.
"""

import gc
from collections import Counter

_begun: Counter[str] = Counter()


def freeze_loaded(kind: str) -> None:
    """To be called where a task begins.

    At its second of a kind a worker has loaded what that kind needs, and has just collected what
    the first one left: nothing else is kept for ever.
    """
    _begun[kind] += 1
    if _begun[kind] == 2:
        gc.freeze()

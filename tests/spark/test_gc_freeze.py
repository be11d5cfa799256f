"""What a worker has loaded is not searched for garbage after every task."""

import subprocess
import sys


def test_a_worker_freezes_what_it_has_loaded_when_it_begins_its_second_task() -> None:
    counts = """
import gc
from suwi.spark.gc_freeze import freeze_loaded

for kind in ("read", "write", "read", "read"):
    freeze_loaded(kind)
    print(gc.get_freeze_count() > 0)
class Node: pass
node = Node()
node.itself = node
del node
print(gc.collect() > 0)
"""
    run = subprocess.run([sys.executable, "-c", counts], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["False", "False", "True", "True", "True"]

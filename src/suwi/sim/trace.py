"""A fingerprint of a run: same seed, same hash, whatever `PYTHONHASHSEED`.

Labels name tasks and functions, never addresses. The last events are kept for error messages.
"""

from collections import deque
from collections.abc import Callable
from hashlib import blake2b

_BATCH = 512


class Trace:
    def __init__(self, sink: Callable[[str], None] | None = None) -> None:
        self._hash = blake2b(digest_size=16)
        self._batch: list[str] = []
        self._sink = sink
        self._time_s, self._time = 0.0, "0.0"
        self.recent: deque[str] = deque(maxlen=50)
        self.events = 0

    def add(self, time_s: float, owner: str, kind: str, label: str) -> None:
        if time_s != self._time_s:
            self._time_s, self._time = time_s, repr(time_s)
        line = f"{self._time} {owner} {kind} {label}\n"
        self.events += 1
        self.recent.append(line)
        self._batch.append(line)
        if len(self._batch) >= _BATCH:
            self._flush()
        if self._sink is not None:
            self._sink(line)

    def digest(self) -> str:
        self._flush()
        return self._hash.hexdigest()

    def _flush(self) -> None:
        self._hash.update("".join(self._batch).encode())
        self._batch.clear()

"""Chooses the next callback among those that are ready."""

from collections import deque
from typing import Literal, Protocol

from suwi.sim.handle import SimHandle
from suwi.sim.incarnation import Incarnation
from suwi.sim.random import SimRandom

Schedule = Literal["random", "fifo"]


class Ready(Protocol):
    """The callbacks that are ready."""

    def __len__(self) -> int: ...

    def add(self, handle: SimHandle) -> None: ...

    def pop(self) -> SimHandle: ...


class FifoReady:
    """First in, first out, as in asyncio."""

    def __init__(self) -> None:
        self._queue: deque[SimHandle] = deque()

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, handle: SimHandle) -> None:
        self._queue.append(handle)

    def pop(self) -> SimHandle:
        return self._queue.popleft()


class RandomReady:
    """Any task may run next; plain callbacks of one process keep the order asyncio promises them.

    `call_soon(a)` before `call_soon(b)` means a before b, and code may rely on it. That two tasks
    wake in the order in which their futures were set is not guaranteed, and no code may rely on it.
    """

    def __init__(self, random: SimRandom) -> None:
        self._random = random.random
        self._choices: list[SimHandle | deque[SimHandle]] = []
        self._queues: dict[Incarnation | None, deque[SimHandle]] = {}

    def __len__(self) -> int:
        return len(self._choices)

    def add(self, handle: SimHandle) -> None:
        if handle.task is not None:
            self._choices.append(handle)
            return
        queue = self._queues.get(handle.owner)
        if queue is None:
            queue = self._queues[handle.owner] = deque()
        if not queue:
            self._choices.append(queue)
        queue.append(handle)

    def pop(self) -> SimHandle:
        choices = self._choices
        chosen = int(self._random() * len(choices)) if len(choices) > 1 else 0
        choice = choices[chosen]
        if isinstance(choice, deque):
            handle = choice.popleft()
            if choice:
                return handle
        else:
            handle = choice
        choices[chosen] = choices[-1]
        choices.pop()
        return handle

"""Only the active controller writes the cluster's state, and each has a greater epoch.

There are few elections in a short time: brokers must not depose each other without end.
"""

from collections import deque
from collections.abc import Iterable

from simulation.checkers.facts import Broken, Checker, StateChange, World
from suwi.model.ids import NodeId

_ELECTIONS_MAX, _WITHIN_S = 50, 5.0


class Controllers(Checker):
    def __init__(self) -> None:
        self._epoch = 0
        self._elected_s: deque[float] = deque(maxlen=_ELECTIONS_MAX)

    def on_controller(self, world: World, epoch: int) -> None:
        if epoch <= self._epoch:
            raise Broken(f"controller epoch {epoch} comes after {self._epoch}")
        self._epoch = epoch
        self._elected_s.append(world.now_s)
        if len(self._elected_s) == _ELECTIONS_MAX and world.now_s - self._elected_s[0] < _WITHIN_S:
            raise Broken(
                f"{_ELECTIONS_MAX} controllers within {_WITHIN_S:g} s: elections do not end"
            )

    def on_states(
        self, world: World, changes: Iterable[StateChange], author: NodeId | None
    ) -> None:
        if author is None:
            return
        for change in changes:
            if world.controller is None or world.controller[0] != author:
                active = f"b{world.controller[0]}" if world.controller else "nobody"
                raise Broken(f"b{author} changes {change.log}, but {active} is the controller")

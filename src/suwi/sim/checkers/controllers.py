"""Who may write the cluster's state: the controller in office, and each has a greater epoch."""

from collections.abc import Iterable

from suwi.model.ids import NodeId
from suwi.sim.checkers.facts import Broken, Checker, StateChange, World


class Controllers(Checker):
    def __init__(self) -> None:
        self._epoch = 0

    def on_controller(self, world: World, epoch: int) -> None:
        if epoch <= self._epoch:
            raise Broken(f"controller epoch {epoch} comes after {self._epoch}")
        self._epoch = epoch

    def on_states(
        self, world: World, changes: Iterable[StateChange], author: NodeId | None
    ) -> None:
        if author is None:
            return
        for change in changes:
            if world.controller is None or world.controller[0] != author:
                office = f"b{world.controller[0]}" if world.controller else "nobody"
                raise Broken(f"b{author} changes {change.log}, but {office} is the controller")

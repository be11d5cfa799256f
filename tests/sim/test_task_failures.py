"""Tasks that fail for a reason nobody foresaw: how that is injected, and what the judge expects.

The unit under test is a stub with the three ways to fail. For brokers a `Supervision` takes its
place: `Options(supervision=…, kinds=["fail task"])`.
"""

import asyncio
from collections.abc import Callable

import pytest

from suwi.sim.checkers import Broken
from suwi.sim.scenario import _is_injected
from suwi.sim.simulation import Machine, Simulation
from suwi.sim.task_failures import Sabotage, Unforeseen, Unit, judge


class Stub:
    """A process with tasks, each supervised as its unit demands, or as `instead` says."""

    def __init__(self, machine: Machine, instead: Unit | None = None, *, silent: bool = False):
        self.stopped_because: str | None = None
        self.restarts = 0
        self.failed_partitions = 0
        self._machine = machine
        self._instead = instead
        self._silent = silent

    @property
    def is_running(self) -> bool:
        return self._machine.is_running

    def start(self, name: str, unit: Unit) -> None:
        self._machine.spawn(self._keep(self._instead or unit), name=name)

    async def _keep(self, unit: Unit) -> None:
        while True:
            try:
                for _ in range(1000):
                    await asyncio.sleep(0.1)
            except Unforeseen as error:
                if self._silent:
                    return
                match unit:
                    case Unit.BROKER:
                        self.stopped_because = str(error)
                        self._machine.kill()
                    case Unit.PARTITION:
                        self.failed_partitions += 1
                    case Unit.RESTARTED:
                        self.restarts += 1


def let_fail(unit: Unit, make: Callable[[Machine], Stub], name: str = "log cleaner") -> None:
    simulation = Simulation(1)

    async def main() -> None:
        machine = simulation.machine("b1")
        machine.start()
        sabotage = Sabotage(simulation.loop)
        stub = make(machine)
        stub.start("metrics", Unit.RESTARTED)
        stub.start("log cleaner", unit)

        async def fail() -> str | None:
            sabotage.arm(name, machine.incarnation)
            await asyncio.sleep(1)
            sabotage.disarm()
            return sabotage.failed

        await judge(unit, stub, fail)

    simulation.run(main())


@pytest.mark.parametrize("unit", Unit)
def test_a_unit_that_fails_as_designed_is_right(unit: Unit) -> None:
    let_fail(unit, Stub)


@pytest.mark.parametrize("unit", Unit)
def test_a_task_that_dies_silently_is_caught(unit: Unit) -> None:
    with pytest.raises(Broken, match="log cleaner failed, and not so"):
        let_fail(unit, lambda machine: Stub(machine, silent=True))


@pytest.mark.parametrize(
    ("unit", "instead"),
    [(one, other) for one in Unit for other in Unit if one is not other],
)
def test_a_unit_that_fails_as_another_is_caught(unit: Unit, instead: Unit) -> None:
    with pytest.raises(Broken):
        let_fail(unit, lambda machine: Stub(machine, instead))


def test_a_task_that_never_runs_fails_nobody() -> None:
    let_fail(Unit.BROKER, Stub, name="no such task")


def test_what_was_injected_is_not_taken_for_an_error_of_the_broker() -> None:
    wrapped = KeyError("follow-up")
    wrapped.__context__ = Unforeseen("injected")
    assert _is_injected(wrapped)
    assert not _is_injected(KeyError("its own"))


def test_tasks_are_found_by_their_names_and_processes() -> None:
    simulation = Simulation(1)
    ended: list[str] = []

    async def wait(name: str) -> None:
        try:
            await asyncio.sleep(1)
        except Unforeseen:
            ended.append(name)

    async def main() -> None:
        sabotage = Sabotage(simulation.loop)
        one, other = simulation.machine("b1"), simulation.machine("b2")
        for machine in (one, other):
            machine.start()
            machine.spawn(wait(machine.name), name=f"fetcher {machine.name}")
        sabotage.arm("fetcher *", other.incarnation)
        await asyncio.sleep(2)
        assert sabotage.failed == "fetcher b2"

    simulation.run(main())
    assert ended == ["b2"]

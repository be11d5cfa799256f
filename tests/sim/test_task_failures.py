"""Tasks that fail for an unexpected reason: how that is injected, and what is excused.

`mutants/tasks.py` shows for every task that what must follow does follow.
"""

import asyncio
from typing import Any

import pytest

from simulation.seeded_run import SeededRun, _is_injected
from simulation.task_failures import InjectedFailure, TaskFaults
from suwi.env.tasks import RESTART, Tasks
from suwi.sim import Machine, Simulation
from suwi.sim.cluster import SimCluster
from tests.sim.mutants.tasks import TRIED, script

LONG = {
    *("log start offset checkpoint", "coordinator replay", "log cleaner", "log preparation"),
    *("retry of failed partitions", "replica fetcher", "deferred deletion"),
}
"""They need several seeds. Their mutants, in `make test-long`, need them to fail, too."""


def test_what_was_injected_is_not_taken_for_an_error_of_the_broker() -> None:
    wrapped = KeyError("follow-up")
    wrapped.__context__ = InjectedFailure("injected")
    assert _is_injected(wrapped)
    assert not _is_injected(KeyError("its own"))


def run_fetchers(scenario: Any) -> None:
    """Two processes with a supervised task each, which is started again."""
    simulation = Simulation(1)

    async def main() -> None:
        task_faults = TaskFaults(SimCluster(simulation))
        machines = simulation.machine("c1"), simulation.machine("c2")
        started = [begin(machine) for machine in machines]
        await scenario(task_faults, machines, started)

    simulation.run(main())


def begin(machine: Machine) -> Tasks:
    machine.start()
    tasks = Tasks(lambda failure: None)

    async def wait() -> None:
        for _ in range(1000):
            await asyncio.sleep(0.01)

    def start() -> None:
        tasks.start(wait, name="replica fetcher", on_failure=RESTART)

    machine.call(start)
    return tasks


def test_tasks_fail_once_by_their_names_and_processes() -> None:
    async def scenario(task_faults: TaskFaults, machines: Any, tasks: list[Tasks]) -> None:
        await asyncio.sleep(1)
        task_faults.arm("replica fetcher", machines[1].incarnation)
        task_faults.arm("log cleaner", machines[0].incarnation)
        await asyncio.sleep(1)
        assert [each.failures["replica fetcher"] for each in tasks] == [0, 1]
        assert not task_faults.is_armed("replica fetcher", machines[1].incarnation)
        assert task_faults.is_armed("log cleaner", machines[0].incarnation)

    run_fetchers(scenario)


def test_the_pause_before_work_begins_again_does_not_fail() -> None:
    async def scenario(task_faults: TaskFaults, machines: Any, tasks: list[Tasks]) -> None:
        for failures in range(1, 5):
            task_faults.arm("replica fetcher", machines[0].incarnation)
            await asyncio.sleep(5)  # Longer than the pause after the last failure.
            assert tasks[0].failures["replica fetcher"] == failures

    run_fetchers(scenario)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in LONG)) for name in TRIED]
)
def test_when_a_task_fails_its_unit_does_and_the_cluster_goes_on(name: str) -> None:
    """In some run of its fault script the task exists and fails."""
    for seed in range(10):
        run = SeededRun(Simulation(seed), script(name))
        run.run()
        if any(f"task {name!r}" in line and "has failed" in line for line in run.cluster.timeline):
            return
    pytest.fail(f"no task {name!r} took a step")

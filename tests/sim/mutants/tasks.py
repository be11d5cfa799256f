"""An unnoticed exception in a task, for every task: the bugs that supervision prevents.

They have no number among the hazards and no transcript. Each has the fault script that leads to it.
"""

from collections.abc import Callable
from typing import Any

from simulation.seeded_run import Options
from simulation.task_failures import UNITS
from suwi.env.tasks import Tasks, Work
from suwi.replica.replica_manager import TASK as CHANGE_OF_ROLE
from suwi.replica.replica_manager import ReplicaManager
from tests.sim.mutants.mutant import FAULT, ScriptedMutant

_SCRIPTS = {
    CHANGE_OF_ROLE: {"kinds": ["kill"]},
    "coordinator replay": {"kinds": ["kill"], "force": {"members": 3}},
    "deferred deletion": {"force": {"churns": True}},
    "election after power loss": {"kinds": ["lose power"]},
    "failure detector": {"kinds": ["reset"]},
    "in-sync set proposals": {"kinds": ["kill"]},
    "log cleaner": {"force": {"churns": True}},
    "log preparation": {"kinds": ["kill"]},
    "check of suspect batches": {"force": {"scrubs": True}},
    "log scrubber": {"force": {"scrubs": True}},
    "log sync": {"force": {"flushes_each": True}},
    "retry of failed partitions": {"kinds": ["kill"], "tasks": [CHANGE_OF_ROLE]},
}
"""What else the run needs, for the task to have something to do."""
TRIED = [name for name in UNITS if name != "loss reports"]
"""Losses are too rare for a fault script; see the tests of loss reports."""


def script(name: str) -> Options:
    """Runs in which tasks of this name fail."""
    more: Any = _SCRIPTS.get(name, {})
    return Options(
        kinds=["fail task", "fail task", *more.get("kinds", ())],
        tasks=[name, *more.get("tasks", ())],
        force=more.get("force", {}),
        long_cut=False,
    )


def _silent(name: str) -> ScriptedMutant:
    supervise, count = Tasks._supervise, Tasks.count

    async def dies(tasks: Tasks, work: Work, of: str, on_failure: Any) -> None:
        if of != name:
            return await supervise(tasks, work, of, on_failure)
        try:
            await work()
        except Exception:
            return

    def counts(tasks: Tasks, of: str, error: Exception) -> None:
        if of != name:
            count(tasks, of, error)

    return ScriptedMutant(
        f"silent-{name.replace(' ', '-')}",
        FAULT,
        f"an unnoticed exception in a task {name!r}",
        ((Tasks, "_supervise", dies), (Tasks, "count", counts)),
        options=script(name),
    )


def _not_isolated(_: ReplicaManager, _tp: Any, step: Callable[[], None]) -> None:
    step()


MUTANTS = (
    *(_silent(name) for name in TRIED if name != CHANGE_OF_ROLE),
    ScriptedMutant(
        "partitions-fail-together",
        FAULT,
        "an exception in one partition's change of role fails more than this partition",
        ((ReplicaManager, "_isolated", _not_isolated),),
        options=script(CHANGE_OF_ROLE),
    ),
)

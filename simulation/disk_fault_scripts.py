"""Faults of a simulated cluster's disks: full, slow, and calls that fail.

After some the broker is restarted, as an operator would do. After others it continues: one call
fails and the next one works, or one path cannot be used for a while.
"""

import errno

from simulation.fault_plan import FaultPlan
from suwi.sim.cluster import DATA, SimNode
from suwi.sim.faults import Fault, Operation

_ERRORS: dict[Operation, tuple[int, ...]] = {
    "open": (errno.EIO, errno.EACCES, errno.EMFILE),
    "read": (errno.EIO,),
    "write": (errno.EIO, errno.ENOSPC),
    "truncate": (errno.EIO,),
    "sync": (errno.EIO, errno.ENOSPC),
    "stat": (errno.EIO, errno.EACCES),
    "list_dir": (errno.EIO, errno.EACCES, errno.EMFILE),
    "make_dirs": (errno.EIO, errno.EACCES, errno.ENOSPC),
    "rename": (errno.EIO, errno.EACCES, errno.ENOSPC),
    "remove": (errno.EIO, errno.EACCES),
    "sync_dir": (errno.EIO, errno.EMFILE),
    "lock": (errno.EIO, errno.EACCES),
}
"""Which errors the kernel gives for a call."""
OPERATIONS = tuple(_ERRORS)
_ONCE_MAX = 4
"""How many calls fail in one fault, at most, each once."""


async def fill(plan: FaultPlan) -> None:
    node = plan.pick()
    if node is None:
        return
    disk = node.machine.disk
    room = plan.random.below(2000)
    plan.say(f"disk of {node.name} has {room} bytes left")
    disk.capacity_bytes = disk.drive.volume.used_bytes + room
    await plan.for_a_while()
    plan.say(f"disk of {node.name} has space again")
    node.machine.disk.capacity_bytes = None


async def stall(plan: FaultPlan) -> None:
    node = plan.pick()
    if node is not None:
        duration_s = plan.random.choice((0.1, 1.0, 1.5 * plan.session_s))
        plan.say(f"disk of {node.name} stalls for {duration_s} s")
        node.machine.disk.faults.stall(duration_s, "write")


async def fail_and_restart(plan: FaultPlan) -> None:
    """One call fails, and the broker is restarted."""

    async def act(node: SimNode) -> None:
        fault = _fail_once(plan, node)
        await plan.for_a_while()
        node.machine.disk.faults.remove(fault)
        plan.say(f"restart {node.name}")
        if node.is_running:
            node.kill()
        await plan.start(node)

    await plan.alone(act)


async def fail_once(plan: FaultPlan) -> None:
    """Some calls fail, each once, and the broker continues with what it has left."""
    node = plan.pick()
    if node is None:
        return
    faults = [_fail_once(plan, node) for _ in range(plan.random.between(1, _ONCE_MAX))]
    await plan.for_a_while()
    for fault in faults:
        node.machine.disk.faults.remove(fault)


async def deny_access(plan: FaultPlan) -> None:
    """One path cannot be opened, listed, renamed or removed for a while (EACCES)."""
    node = plan.pick()
    if node is None:
        return
    path = _some_path(plan, node)
    plan.say(f"{node.name} may not access {path}")
    denied: tuple[Operation, ...] = ("open", "stat", "list_dir", "make_dirs", "rename", "remove")
    faults = node.machine.disk.faults
    planned = [faults.fail(each, errno.EACCES, path=path, times=None) for each in denied]
    await plan.for_a_while()
    plan.say(f"{node.name} may access {path} again")
    for fault in planned:
        node.machine.disk.faults.remove(fault)


def _fail_once(plan: FaultPlan, node: SimNode) -> Fault:
    operation = plan.random.choice(OPERATIONS)
    error = plan.random.choice(_ERRORS[operation])
    path = _some_path(plan, node)
    # Which of the calls it is: otherwise it is always the most frequent one.
    skip = plan.random.choice((0, 0, 1, 3, 10))
    plan.say(f"disk of {node.name} fails in a {operation} of {path}: {errno.errorcode[error]}")
    return node.machine.disk.faults.fail(operation, error, path=path, skip=skip)


def _some_path(plan: FaultPlan, node: SimNode) -> str:
    """Everything, the checkpoints, or one partition, also after its directory was renamed."""
    logs = [log for log, state in plan.monitor.world.states.items() if node.id in state.replicas]
    patterns = [f"{DATA}/*", f"{DATA}/*checkpoint*"]
    if logs:
        patterns += [f"{DATA}/{plan.random.choice(logs)}*"] * 2
    return plan.random.choice(patterns)

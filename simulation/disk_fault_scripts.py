"""Faults of a simulated cluster's disks: full, slow, calls that fail, and damaged files.

After some the broker is restarted, as an operator would do. After others it continues: one call
fails and the next one works, or one path cannot be used for a while.
"""

import errno
from itertools import pairwise
from typing import TypeAlias

from simulation.fault_plan import FaultPlan
from suwi.log import names
from suwi.metadata.image import PartitionState
from suwi.model.ids import NO_NODE
from suwi.records.batch import HEADER_BYTES, batches
from suwi.sim.checkers.facts import LogId, Rules
from suwi.sim.cluster import DATA, SimNode
from suwi.sim.disk import SimDisk
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
_DAMAGE_TRIES = 12
_DAMAGE_PAUSE_S = 0.25

_Place: TypeAlias = tuple[LogId, SimNode, str, int]
"""A replica, one of its files, and a position in that."""


async def fill(plan: FaultPlan) -> None:
    node = plan.pick()
    if node is None:
        return
    room = plan.random.below(2000)
    plan.say(f"disk of {node.name} has {room} bytes left")
    node.machine.disk.fill(room)
    await plan.for_a_while()
    plan.say(f"disk of {node.name} has space again")
    node.machine.disk.free()


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


async def damage_log(plan: FaultPlan) -> None:
    """A byte of a record in a closed, synced segment of one replica changes. All other replicas are
    in sync, and enough of them that this one can be replaced."""
    if not plan.damages_logs:
        return
    places: list[_Place] = []
    for _ in range(_DAMAGE_TRIES):
        if not plan.damages_left() and plan.all_have_power():
            places = _places(plan)
        if places or plan.is_healing:
            break
        await plan.pause(_DAMAGE_PAUSE_S)
    if not places:
        return
    log, node, path, position = plan.random.choice(places)
    content = bytes(node.machine.disk.peek(path)[: position + 1])
    damaged = content[:-1] + bytes([content[-1] ^ 0xFF])
    plan.say(f"{log} of {node.name} is damaged in {path} at {position}")
    node.machine.disk.overwrite(path, damaged[-1:], position)

    def is_left() -> bool:
        try:
            return bytes(node.machine.disk.peek(path)[: position + 1]) == damaged
        except FileNotFoundError:
            return False

    plan.damaged[node.id] = is_left


def _places(plan: FaultPlan) -> list[_Place]:
    """A replica whose log may be damaged, one of its files and where its records begin."""
    world = plan.monitor.world
    return [
        (log, node, *found)
        for log, state in world.states.items()
        if _can_be_replaced(state, world.rules_of(log))
        and not log.name.topic.startswith("__")  # `shard_watch` reads those from the disk.
        for node in map(plan.free, state.replicas)
        if node is not None
        for found in _records_of_closed_segments(node, log)
    ]


def _can_be_replaced(state: PartitionState, rules: Rules) -> bool:
    return (
        set(state.isr) == set(state.replicas)
        and state.leader != NO_NODE
        and not state.is_reassigning
        and not rules.unclean_election
        and len(state.isr) > max(1, rules.min_insync_replicas)
    )


def _records_of_closed_segments(node: SimNode, log: LogId) -> list[tuple[str, int]]:
    """The file and the position of the records of each batch that a recovery would not read."""
    disk = node.machine.disk
    if node.broker is None:
        return []
    found: list[tuple[str, int]] = []
    for partition in node.broker.replicas:
        if partition.partition != log.name or not partition.is_open:
            continue
        synced = _recovery_points(disk).get((log.name.topic, str(log.name.partition)), 0)
        partition_log = partition.log_as_it_is
        for segment, following in pairwise(partition_log.segments(partition_log.start_offset)):
            if following.base_offset <= synced:
                content = disk.peek(segment.log_path)
                found += [
                    (segment.log_path, position + HEADER_BYTES)
                    for position, header in batches(content)
                    if header.size_bytes > HEADER_BYTES
                    and header.base_offset >= partition_log.start_offset
                ]
    return found


def _recovery_points(disk: SimDisk) -> dict[tuple[str, str], int]:
    """As the file has them: the faults of the disk are for the broker."""
    try:
        content = bytes(disk.peek(f"{DATA}/{names.RECOVERY_POINTS}")).decode()
    except FileNotFoundError:
        return {}
    rows = [line.split(" ") for line in content.splitlines()[2:]]
    return {(topic, partition): int(offset) for topic, partition, offset in rows}


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

"""One run from one seed: a cluster, clients, faults; then everything is healed and compared.

`run_seed` does all of it. The exception it raises says what is wrong.
"""

import asyncio
import gc
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from unittest.mock import patch

from simulation import group_workload, long_network_partition, transaction_workload
from simulation.access_rules import INTRUDER
from simulation.checkers.copies import broken_copies
from simulation.checkers.group_offsets import broken_offsets
from simulation.checkers.groups import broken_generations
from simulation.deletion_watch import DeletionWatch
from simulation.fault_kinds import KINDS, KINDS_OF_MECHANISMS
from simulation.fault_plan import FaultPlan
from simulation.group_history import GroupHistory
from simulation.group_workload import GroupWorkload
from simulation.history import History, Outcome
from simulation.history_checker import violations
from simulation.mechanism_watch import MechanismWatch, Pair
from simulation.mechanisms import faults_of, mechanisms_of, named, shape_of
from simulation.mute_watch import MuteWatch
from simulation.recording import RunRecorder
from simulation.rights_watch import RightsWatch
from simulation.shape import Shape, WriterKind
from simulation.shard_watch import ShardWatch
from simulation.task_failures import UNITS, InjectedFailure
from simulation.transaction_workload import Copies, TransactionWorkload
from simulation.watch_ends import WatchEnds
from simulation.workload import NotHealed, Workload
from suwi.handlers import fetch
from suwi.lab.events import Recording
from suwi.model.ids import NO_NODE
from suwi.records.compression import Compression
from suwi.replica.partition_watch import WATCH_S
from suwi.sim.checkers import Broken, Checker, Committed, all_checkers
from suwi.sim.cluster import SimCluster
from suwi.sim.invariant_monitor import InvariantMonitor
from suwi.sim.random import SimRandom
from suwi.sim.simulation import Simulation

TROUBLE_S = 12.0
TROUBLE_OF_COPIERS_S = 6.0
"""They do so much that a run takes as long as another one."""
HEALED_WITHIN_S = 60.0
"""Within this time after healing every partition has a leader, all replicas are in sync and equal,
and every broker has the same image."""
SESSION_TIMEOUT_S = 2.0
_LONG_CUT_CHANCE = 0.01
_GROUP_CHANCE = 0.25
_REASSIGN_CHANCE = 0.25
_STRANGER_CHANCE = 0.2
_COPIERS_CHANCE = 1 / 6
_PINS_GONE_WITHIN_S = 10.0
_SCRUBBING_CHANCE = 0.25
_FETCHES_IN_SLICES_CHANCE = 0.25

_SETTINGS = {
    "replica.lag.time.max.ms": "2500",
    "leader.imbalance.check.interval.seconds": "3",
    # So that they happen in so short a time.
    "log.retention.check.interval.ms": "1500",
    "log.cleaner.backoff.ms": "1500",
    "log.segment.delete.delay.ms": "1500",
    "log.flush.offset.checkpoint.interval.ms": "1500",
    "log.flush.start.offset.checkpoint.interval.ms": "1500",
    "producer.id.expiration.check.interval.ms": "1500",
}


@dataclass(frozen=True, slots=True)
class Run:
    """Figures of a run."""

    seed: int
    trace_hash: str
    steps: int
    virtual_s: float
    writes: int
    acked: int
    read: int
    leader_epochs: int
    """The number of leader epochs, in all partitions."""
    pairs: Sequence[Pair] = field(default=(), repr=False)
    """The mechanisms that were active at the same time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    shape: Shape | None = None
    """Drawn if None, as are the kinds of faults."""
    force: Mapping[str, Any] = field(default_factory=dict)
    """Values that replace those of the drawn shape."""
    kinds: Sequence[str] | None = None
    trouble_s: float | None = None
    """For how long faults are injected; if None, for as long as is usual with the shape."""
    long_cut: bool | None = None
    """Whether a link is down for half an hour as well; drawn if None."""
    tasks: Sequence[str] = tuple(UNITS)
    """Those that may fail."""
    pairs: bool = False
    """Whether the seed also has the pair of mechanisms that is its turn."""
    mechanisms: Sequence[str] = ()
    """Those that the run must have."""


def draw_shape(random: SimRandom) -> Shape:
    min_insync = random.choice((1, 2, 2))
    writers = random.choice(
        (
            (WriterKind(), WriterKind(acks=1, idempotent=False)),
            (WriterKind(), WriterKind()),
            (WriterKind(idempotent=False), WriterKind()),
        )
    )
    # Then lost records must have been reported; otherwise none may be lost.
    unclean = random.chance(0.08)
    return Shape(
        brokers=random.choice((3, 3, 3, 3, 3, 3, 4)),
        unclean_elections=unclean,
        partitions=random.choice((1, 1, 2, 3)),
        replication_factor=random.choice((3, 3, 3, 2)),
        min_insync_replicas=min_insync,
        flushes_each=not unclean and random.chance(0.2),
        writers=writers,
        readers=random.choice((1, 1, 1, 2)),
        churns=random.chance(0.25),
        deletes=random.chance(0.25),
        pause_s_max=random.choice((0.3, 1.0, 1.0)),
        looks_up_deleted=random.chance(0.5),
        pipelines=random.chance(0.25),
        looks_up=random.chance(0.3),
        floods=random.chance(0.1),
        codec=random.choice((Compression.NONE, Compression.NONE, Compression.GZIP)),
    )


def draw_group(random: SimRandom) -> dict[str, Any]:
    """The group's part of a shape, from a stream of its own: without one a seed is what it was."""
    if not random.chance(_GROUP_CHANCE):
        return {}
    return {
        "members": random.choice((2, 3, 3, 4)),
        "cooperative": random.chance(0.5),
        "consumer": random.chance(0.5),
    }


def draw_copiers(random: SimRandom) -> dict[str, Any]:
    """The part of those that copy in transactions, from a stream of its own. They must find every
    record that they have not copied."""
    if not random.chance(_COPIERS_CHANCE):
        return {}
    return {
        "copiers": random.choice((1, 2, 2)),
        "transaction_version": random.choice((1, 2)),
        "partitions": 2,
        "deletes": False,
        "unclean_elections": False,
    }


def run_seed(
    seed: int,
    options: Options | None = None,
    record: Callable[[Recording], None] | None = None,
) -> Run:
    """Raises if an invariant does not hold. `record` gets what happened, also if the run fails."""
    run = SeededRun(Simulation(seed), options or Options(), is_recorded=record is not None)
    try:
        return run.run()
    finally:
        if record is not None and run.recorder is not None:
            record(run.recorder.recording(f"seed {seed}"))


def _draw(simulation: Simulation) -> Shape:
    stream = simulation.random.stream
    return replace(
        draw_shape(stream("shape")),
        **draw_group(stream("group shape")),
        **draw_copiers(stream("transaction shape")),
        reassigns=stream("reassignments").chance(_REASSIGN_CHANCE),
        strangers=stream("strangers").chance(_STRANGER_CHANCE),
        scrubs=stream("scrubbing").chance(_SCRUBBING_CHANCE),
    )


def _settings(shape: Shape, *, long_cut: bool) -> dict[str, str]:
    return {
        **_SETTINGS,
        **group_workload.SETTINGS,
        **transaction_workload.SETTINGS,
        **(long_network_partition.SETTINGS if long_cut else {}),
        **shape.broker_settings(),
    }


class SeededRun:
    def __init__(
        self, simulation: Simulation, options: Options, *, is_recorded: bool = False
    ) -> None:
        self.simulation = simulation
        self.options = options
        mechanisms = named(options.mechanisms)
        drawn = options.shape or _draw(simulation)
        if options.pairs:
            mechanisms += mechanisms_of(simulation.seed)
            in_slices = simulation.random.stream("fetches in slices")
            drawn = replace(drawn, fetches_in_slices=in_slices.chance(_FETCHES_IN_SLICES_CHANCE))
        self.shape = shape = replace(drawn, **{**shape_of(mechanisms), **options.force})
        self.long_cut = options.long_cut
        if self.long_cut is None:
            is_cut = simulation.random.stream("long cut").chance(_LONG_CUT_CHANCE)
            self.long_cut = is_cut and not shape.coordinates  # Half an hour of a group is too much.
        self.cluster = SimCluster(
            simulation,
            brokers=self.shape.brokers,
            session_timeout_s=SESSION_TIMEOUT_S,
            settings=_settings(shape, long_cut=self.long_cut),
        )
        usual_s = TROUBLE_OF_COPIERS_S if shape.copiers else TROUBLE_S
        self._trouble_s = usual_s if options.trouble_s is None else options.trouble_s
        self.committed = Committed()
        self.watch = MechanismWatch(self.cluster)
        watches = DeletionWatch(self.cluster), MuteWatch(self.cluster), RightsWatch(self.cluster)
        self._tapped = [self.watch.tapped, *(watch.tapped for watch in watches)]
        self._watch_ends = WatchEnds(self.cluster)
        self.history = History(replicas_move=shape.reassigns)
        self.recorder = RunRecorder(self.cluster, self.history) if is_recorded else None
        # The recorder is the first: each of the others may end the run.
        checkers = [self.recorder or Checker(), *all_checkers(self.committed), self.watch]
        self.monitor = InvariantMonitor(self.cluster, checkers)
        self.plan = FaultPlan(
            self.cluster,
            self.monitor,
            simulation.faults,
            KINDS,
            KINDS_OF_MECHANISMS,
            kinds=options.kinds,
            wanted=faults_of(mechanisms),
            tasks=options.tasks,
            # Internal topics have no sync for each message.
            power_losses="any" if shape.flushes_each and not shape.coordinates else "budget",
            clients=[
                *("c1", "c2"),
                *(f"m{number}" for number in range(1, shape.members + 1)),
                *(f"t{number}" for number in range(1, shape.copiers + 1)),
                *([INTRUDER] if shape.changes_rules else ()),
            ],
            # A reassignment may leave so few replicas that none can be replaced.
            damages_logs=shape.scrubs and not shape.reassigns,
        )
        self.groups = GroupHistory()
        self.copies = Copies()
        self.shards = ShardWatch(self.cluster) if shape.coordinates else None
        self.errors = _Errors()

    def run(self) -> Run:
        with self.errors, ExitStack() as stack, _without_garbage_collection():
            for tapped in self._tapped:
                stack.enter_context(tapped())
            if self.shape.fetches_in_slices:
                stack.enter_context(patch.object(fetch, "LARGE_PARTITIONS", 0))
            if self.recorder is not None:
                stack.enter_context(self.recorder.tapped())
            try:
                self.simulation.run(self._run_all())
            except Exception as error:
                if self.recorder is not None:
                    self.recorder.violation(f"{type(error).__name__}: {error}")
                error.add_note("\n".join(self.cluster.timeline))
                raise
        return self._result()

    async def _run_all(self) -> None:
        await self.cluster.start()
        workload = Workload(self.cluster, self.shape, self.history)
        await workload.begin()
        group = None
        if self.shape.members:
            group = GroupWorkload(self.cluster, workload, self.groups)
            await group.begin()
        copiers = None
        if self.shape.copiers:
            copiers = TransactionWorkload(self.cluster, workload, self.history)
            self.copies = copiers.copies
            await copiers.begin()
        await self.plan.run(self._trouble_s)
        if self.long_cut:
            await long_network_partition.long_cut(self.plan, workload)
        workload.calm_down()
        await self._heal()
        await self._healed(while_writing=True)
        if group is not None:
            await group.settle()
        await workload.stop_writing()
        if group is not None:
            await group.finish()
        if copiers is not None:
            await copiers.settle()
        await self._healed()
        await workload.finish()
        await self._nothing_pinned()
        if self.shape.watches:
            await asyncio.sleep(WATCH_S + 1)
            self._watch_ends.at_end()
        self.monitor.at_end()
        if self.shards is not None:
            await self.shards.at_end()
        self.errors.check()
        for loss in self.committed.losses:
            self.history.reported_lost(str(loss.log), loss.first, loss.end)
        wrong = [
            *map(str, violations(self.history)),
            *broken_generations(self.groups),
            *broken_offsets(self.groups),
            *broken_copies(self.copies),
        ]
        if wrong:
            raise Broken("\n".join(wrong))

    async def _heal(self) -> None:
        try:
            async with asyncio.timeout(HEALED_WITHIN_S):
                await self.plan.heal()
        except TimeoutError:
            away = [n.name for n in self.cluster.nodes.values() if not n.in_service.is_set()]
            raise NotHealed(f"not in service {HEALED_WITHIN_S:g} s after healing: {away}") from None

    async def _healed(self, *, while_writing: bool = False) -> None:
        """Wait until the cluster has recovered."""
        missing: str | None = None
        for _ in range(int(HEALED_WITHIN_S / 0.25)):
            missing = self._not_agreed() or self._not_in_sync()
            if missing is None and not while_writing:
                missing = self._not_the_same()
            if missing is None:
                return
            await asyncio.sleep(0.25)
        raise NotHealed(f"{HEALED_WITHIN_S:g} s after all faults were removed: {missing}")

    async def _nothing_pinned(self) -> None:
        """All responses are sent and all syncs done: no file is held open for them. Others may be
        for a moment, by work that goes on."""
        pinned = self._pinned()
        for _ in range(int(_PINS_GONE_WITHIN_S / 0.25)):
            if not pinned:
                return
            await asyncio.sleep(0.25)
            still = self._pinned()
            pinned = [file for file in pinned if file in still]
        raise Broken(f"files stay pinned: {pinned}")

    def _pinned(self) -> list[str]:
        return [
            f"{file.path} of {node.name}"
            for node in self.cluster.nodes.values()
            if node.broker is not None
            for directory in node.broker.directories
            for file in directory._files._pins
        ]

    def _not_agreed(self) -> str | None:
        sequence = self.cluster.store.ledger.sequence
        for node in self.cluster.nodes.values():
            if not node.in_service.is_set() or node.broker is None:
                return f"{node.name} is not in service"
            if node.broker.replicas.image.sequence != sequence:
                return f"{node.name} does not have change {sequence}"
            if node.broker.replicas.failed:
                return f"{node.name} has partitions out of service: {node.broker.replicas.failed}"
        return None

    def _not_in_sync(self) -> str | None:
        for log, state in self.monitor.world.states.items():
            if state.leader == NO_NODE:
                return f"{log} has no leader: {state}"
            if self.plan.damages_left():
                return f"the damaged logs of {self.plan.damages_left()} were not replaced"
            if state.is_reassigning:
                return f"{log} is still being reassigned: {state}"
            if set(state.isr) != set(state.replicas):
                return f"{log} has not all replicas in sync: {state}"
        return None

    def _not_the_same(self) -> str | None:
        for log, state in self.monitor.world.states.items():
            leader = self.monitor.world.replica(state.leader, log)
            if leader is None:
                continue  # Nothing was ever written to it.
            for node_id in state.replicas:
                replica = self.monitor.world.replica(node_id, log)
                if replica is None:
                    if leader.end:
                        return f"{log}: b{node_id} has nothing yet"
                elif replica.leader_epoch != state.leader_epoch:
                    return f"{replica} is in epoch {replica.leader_epoch}: {state}"
                elif (replica.end, replica.watermark) != (leader.end, leader.end):
                    return (
                        f"{replica} ends at {replica.end}, watermark {replica.watermark}; "
                        f"the leader's at {leader.end}"
                    )
        return None

    def _result(self) -> Run:
        simulation = self.simulation
        states = self.monitor.world.states.values()
        return Run(
            simulation.seed,
            simulation.trace_hash,
            simulation.loop.trace.events,
            simulation.loop.time(),
            len(self.history.writes),
            sum(write.outcome is Outcome.DONE for write in self.history.writes.values()),
            sum(len(events) for r in self.history.readings for events in r.events.values()),
            sum(state.leader_epoch + 1 for state in states),
            tuple(self.watch.activity.pairs()),
        )


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """A run is short and takes a third longer with garbage collection."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _is_injected(error: BaseException | None) -> bool:
    """Whether the simulation itself injected this failure."""
    while error is not None and not isinstance(error, InjectedFailure):
        error = error.__cause__ or error.__context__
    return error is not None


class UnexpectedError(AssertionError):
    """A broker logged an error that it did not expect."""


class _Errors(logging.Handler):
    """Records what brokers log with a traceback: unexpected errors."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self._first: logging.LogRecord | None = None

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and self._first is None and not _is_injected(record.exc_info[1]):
            self._first = record

    def check(self) -> None:
        if self._first is not None:
            assert self._first.exc_info
            raise UnexpectedError(self._first.getMessage()) from self._first.exc_info[1]

    def __enter__(self) -> None:
        logging.getLogger("suwi").addHandler(self)

    def __exit__(self, *_: object) -> None:
        logging.getLogger("suwi").removeHandler(self)

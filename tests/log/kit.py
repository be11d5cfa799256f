"""One partition's log on a simulated or local disk, driven as a broker drives it."""

from dataclasses import dataclass, field
from posixpath import dirname

from suwi.env import Disk, FileRegion
from suwi.env.problems import Problems
from suwi.log import names
from suwi.log.directory_state import DirectoryState
from suwi.log.file_cache import FileCache
from suwi.log.partition_log import Appended, PartitionLog
from suwi.log.recovery import OpenOptions, opening_log
from suwi.log.retention import applying_retention
from suwi.log.sliced_work import run_steps
from suwi.model.ids import LeaderEpoch, Offset, PartitionIndex, TopicPartition
from suwi.model.topic_config import TopicConfig
from suwi.records.batch import BatchHeader, batches, compute_crc, read_header
from suwi.records.builder import build_batch, build_marker
from suwi.records.record import MarkerType, Record
from suwi.sim import ManualClock, SimDisk, SimRandom

NOW_MS = 1_700_000_000_000
PARTITION = TopicPartition("orders", PartitionIndex(0))


def batch_of(
    count: int = 1,
    *,
    timestamps: list[int] | None = None,
    value: bytes = b"v",
    producer: tuple[int, int, int] | None = None,
    transactional: bool = False,
    base_offset: int = 0,
    epoch: int = -1,
) -> bytearray:
    """`count` records; `producer` is its id, its epoch and its first sequence."""
    times = timestamps or [NOW_MS] * count
    producer_id, producer_epoch, sequence = producer or (-1, -1, -1)
    return build_batch(
        [Record(timestamp=time, value=value) for time in times],
        base_offset=base_offset,
        leader_epoch=epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=sequence,
        transactional=transactional,
    )


def bytes_of(region: FileRegion) -> bytes:
    return region.file.pread(region.size_bytes, region.position)


@dataclass
class Bench:
    """A directory with a log that can be closed, crashed and reopened."""

    disk: Disk = field(default_factory=SimDisk)
    dir: str = "/data/orders-0"
    config: TopicConfig = field(default_factory=TopicConfig)
    open_files_max: int = 100
    epoch: int = 0
    now_ms: int = NOW_MS

    def __post_init__(self) -> None:
        self.disk.make_dirs(dirname(self.dir))
        self.disk.sync_dir(dirname(dirname(self.dir)))
        self.files = FileCache(self.disk, self.open_files_max)
        self.state = DirectoryState(self.dir, Problems(ManualClock()))
        self._log: PartitionLog | None = None

    @property
    def log(self) -> PartitionLog:
        if self._log is None:
            self.open()
        assert self._log is not None
        return self._log

    @property
    def sim(self) -> SimDisk:
        assert isinstance(self.disk, SimDisk)
        return self.disk

    # -- opening and closing -------------------------------------------------------------------

    def open(
        self,
        *,
        clean: bool = True,
        recovery_point: int = 0,
        start_offset: int = 0,
        lost_power: bool = True,
        leader_epoch_max: int | None = None,
        was_compacted: bool = False,
        is_adopted: bool = False,
    ) -> PartitionLog:
        self.files = FileCache(self.disk, self.open_files_max)
        self.state = DirectoryState(self.dir, Problems(ManualClock()))
        options = OpenOptions(
            now_ms=self.now_ms,
            clean=clean,
            start_offset=Offset(start_offset),
            recovery_point=Offset(recovery_point),
            lost_power=lost_power,
            leader_epoch_max=None if leader_epoch_max is None else LeaderEpoch(leader_epoch_max),
            was_compacted=was_compacted,
            is_adopted=is_adopted,
        )
        self._log = run_steps(
            opening_log(self.files, self.dir, PARTITION, self.config, self.state, options)
        )
        return self._log

    def close(self) -> None:
        """As in a clean shutdown: everything is completed and synced."""
        self.log.finish()
        self.sync()
        self.files.forget_dir(self.dir)

    def reopen(self) -> PartitionLog:
        start_offset = self.log.start_offset
        self.close()
        return self.open(start_offset=start_offset)

    def crash(self) -> PartitionLog:
        """The process is killed; the next one recovers from the recovery point."""
        recovery_point, start_offset = self.log.recovery_point, self.log.start_offset
        self.disk = self.sim.crash()
        return self.open(
            clean=False,
            recovery_point=recovery_point,
            start_offset=start_offset,
            lost_power=False,
        )

    def lose_power(self, *, tear: bool = True) -> PartitionLog:
        recovery_point, start_offset = self.log.recovery_point, self.log.start_offset
        self.disk = self.sim.power_loss(tear=tear)
        return self.open(clean=False, recovery_point=recovery_point, start_offset=start_offset)

    def recover(self) -> PartitionLog:
        """Reopen with a full recovery."""
        self.files.forget_dir(self.dir)
        return self.open(clean=False)

    def sync(self) -> None:
        while (job := self.log.durability.sync_job()) is not None:
            job.run()
            self.log.durability.synced(job)

    def truncate_to(self, offset: Offset) -> None:
        run_steps(self.log.truncating(offset))

    # -- writing and reading -------------------------------------------------------------------

    def append(self, batch: bytearray | None = None, *, now_ms: int | None = None) -> Appended:
        batch = batch_of() if batch is None else batch
        return self.log.append_as_leader(
            memoryview(batch),
            read_header(batch),
            LeaderEpoch(self.epoch),
            self.now_ms if now_ms is None else now_ms,
        )

    def append_many(self, count: int, *, value: bytes = b"v") -> None:
        for _ in range(count):
            self.append(batch_of(value=value))

    def append_marker(self, producer_id: int, epoch: int, marker: MarkerType) -> Appended:
        batch = build_marker(
            marker,
            producer_id=producer_id,
            producer_epoch=epoch,
            coordinator_epoch=0,
            timestamp=NOW_MS,
        )
        return self.append(batch)

    def headers(self) -> list[BatchHeader]:
        """Every batch that a reader gets from the start of the log to its end."""
        return [header for _, header in batches_in(self.log)]

    def path(self, base_offset: int, suffix: str = names.LOG) -> str:
        return f"{self.dir}/{names.offset_name(Offset(base_offset))}{suffix}"

    def names(self) -> list[str]:
        return self.disk.list_dir(self.dir)


def batches_in(log: PartitionLog) -> list[tuple[bytes, BatchHeader]]:
    """Read the log as a consumer does, and check the invariants of every log."""
    found: list[tuple[bytes, BatchHeader]] = []
    offset = log.start_offset
    while True:
        part = log.read(offset, 1 << 20, log.end_offset, whole_batch=True)
        if part is None:
            break
        data = part.read()
        for position, header in batches(data):
            batch = data[position : position + header.size_bytes]
            assert compute_crc(batch, 0, len(batch)) == header.crc, "a damaged batch is served"
            if found:
                before = found[-1][1]
                assert header.base_offset > before.last_offset, "offsets do not increase"
                assert header.partition_leader_epoch >= before.partition_leader_epoch, (
                    "epochs decrease"
                )
            found.append((batch, header))
            offset = Offset(header.next_offset)
    assert offset <= log.end_offset
    return found


def values_in(log: PartitionLog) -> list[bytes]:
    return [bytes(batch) for batch, _ in batches_in(log)]


def seeded(seed: int, **options: object) -> Bench:
    """A bench on a simulated disk whose faults depend on `seed`."""
    return Bench(disk=SimDisk(random=SimRandom(seed)), **options)  # type: ignore[arg-type]


def apply_retention(partition_log: PartitionLog, high_watermark: Offset, now_ms: int) -> list[str]:
    """Returns the paths of the files to delete."""
    deleted: list[str] = []
    run_steps(applying_retention(partition_log, high_watermark, now_ms, deleted))
    return deleted

"""How much work a run does: for each part a table with one column for each kind of run."""

from dataclasses import dataclass
from typing import Any, TypeVar

KIB, MIB = 1024, 1024 * 1024
P = TypeVar("P")


def _columns(make: type[P], **rows: tuple[Any, ...]) -> list[P]:
    """One value of this type for each column of the table."""
    columns = [dict(zip(rows, column, strict=True)) for column in zip(*rows.values(), strict=True)]
    return [make(**fields) for fields in columns]


@dataclass(frozen=True)
class Plan:
    name: str
    repetitions: int
    warm_up_s: float  # of every broker, before the first job
    raw_requests: dict[int, int]  # by batch size in bytes
    fetches: int
    records: dict[int, int]  # by record size in bytes
    java_records: dict[int, int]
    latency_records: int
    starts: int
    idle_s: float
    crashed_log_bytes: int
    restarts: int
    partitions: int
    partition_produces: int
    partition_rounds: int


# Full and quick runs. Versions against each other: many short turns, within 15 minutes.
FULL, QUICK, VERSIONS = _columns(
    Plan,
    name=("full", "quick", "versions"),
    repetitions=(7, 2, 7),
    warm_up_s=(15, 3, 3),
    raw_requests=(
        {16 * KIB: 24_000, MIB: 480},
        {16 * KIB: 6_000, MIB: 160},
        {16 * KIB: 12_000, MIB: 320},
    ),
    fetches=(2_000, 400, 1_000),
    records=(
        {1_000: 500_000, 100: 1_000_000},
        {1_000: 60_000, 100: 150_000},
        {1_000: 200_000, 100: 400_000},
    ),
    java_records=(
        {1_000: 400_000, 100: 2_000_000},
        {1_000: 60_000, 100: 300_000},
        {1_000: 150_000, 100: 600_000},
    ),
    latency_records=(1_000, 400, 300),
    starts=(5, 2, 7),
    idle_s=(5, 2, 0.5),
    crashed_log_bytes=(1_000_000_000, 200_000_000, 300_000_000),
    restarts=(5, 1, 5),
    partitions=(10_000, 1_000, 2_000),
    partition_produces=(3_000, 1_000, 2_000),
    partition_rounds=(15, 2, 7),
)


def _full_and_quick(make: type[P], **rows: tuple[Any, Any]) -> dict[str, P]:
    return dict(zip((FULL.name, QUICK.name), _columns(make, **rows), strict=True))


@dataclass(frozen=True)
class StallPlan:
    """How much of each kind of work a broker does beside a small producer."""

    repetitions: int
    kafka_warm_ups: int
    section_s_min: float  # long enough for a percentile of 99.9
    ping_every_s: float
    created: int
    segments: int
    compacted: int
    describes: int
    closed: int
    closed_requests: int
    many: int
    metadatas: int
    rounds: int
    truncated: int  # batches of one record that stay, when the last are cut off
    recovered_mb: int
    recovered_partitions: int


STALLS = _full_and_quick(
    StallPlan,
    repetitions=(5, 1),
    kafka_warm_ups=(1, 0),
    section_s_min=(4, 1),
    ping_every_s=(0.002, 0.005),
    created=(1_000, 100),
    segments=(5_000, 200),
    compacted=(400_000, 20_000),
    describes=(5_000, 200),
    closed=(20, 4),
    closed_requests=(1_000, 100),
    many=(10_000, 500),
    metadatas=(300, 20),
    rounds=(3, 1),
    truncated=(100_000, 2_000),
    recovered_mb=(500, 10),
    recovered_partitions=(200, 10),
)


@dataclass(frozen=True)
class FairnessPlan:
    repetitions: int
    warm_ups: int
    section_s: float
    ping_every_s: float
    connections: int  # of each greedy client
    partitions: int  # for an administrator to ask about


FAIRNESS = _full_and_quick(
    FairnessPlan,
    repetitions=(7, 1),
    warm_ups=(1, 0),
    section_s=(6, 1.5),
    ping_every_s=(0.005, 0.01),
    connections=(4, 2),
    partitions=(1_000, 100),
)


@dataclass(frozen=True)
class ConsolePlan:
    repetitions: int
    rounds: int
    section_s: float
    records_per_s: int
    partitions: int
    page_repetitions: int


CONSOLE = _full_and_quick(
    ConsolePlan,
    repetitions=(5, 1),
    rounds=(8, 1),
    section_s=(3, 4),
    records_per_s=(50_000, 50_000),
    partitions=(10_000, 1_000),
    page_repetitions=(3, 1),
)


@dataclass(frozen=True)
class AccessPlan:
    repetitions: int
    rounds: int
    requests: int
    fetches: int
    records: int  # of librdkafka


ACCESS = _full_and_quick(
    AccessPlan,
    repetitions=(9, 1),
    rounds=(6, 2),
    requests=(4_000, 1_500),
    fetches=(1_000, 300),
    records=(50_000, 15_000),
)


@dataclass(frozen=True)
class GroupsPlan:
    members: int
    heartbeat_s: float
    committers: int
    commits: int
    loaded: tuple[int, ...]  # groups


GROUPS = _full_and_quick(
    GroupsPlan,
    members=(500, 500),
    heartbeat_s=(0.2, 0.2),
    committers=(50, 50),
    commits=(200_000, 20_000),
    loaded=((10_000, 100_000), (10_000,)),
)


@dataclass(frozen=True)
class TransactionsPlan:
    repetitions: int
    warm_ups: int
    warm_up_s: float  # of each run, beside its seconds
    run_s: float
    sizes: tuple[int, ...]  # records of a transaction
    producers: tuple[int, ...]


TRANSACTIONS = _full_and_quick(
    TransactionsPlan,
    repetitions=(5, 1),
    warm_ups=(1, 0),
    warm_up_s=(1, 0.3),
    run_s=(3, 0.7),
    sizes=((100, 1_000, 10_000), (100, 1_000, 10_000)),
    producers=((1, 10, 50), (1, 10, 50)),
)


@dataclass(frozen=True)
class ClusterPlan:
    """Of pairs the first is for Suwi, the second for Apache Kafka, whose fail-over takes longer."""

    kills: tuple[int, int]
    rolls: tuple[int, int]
    groups: int
    group_kills: int
    repetitions: int
    warm_ups: int
    records: int
    leaders: int
    leader_kills: tuple[int, int]
    partitions: int
    starts: tuple[int, int]


CLUSTER = _full_and_quick(
    ClusterPlan,
    kills=((50, 8), (3, 1)),
    rolls=((3, 3), (1, 1)),
    groups=(10_000, 500),
    group_kills=(5, 1),
    repetitions=(5, 1),
    warm_ups=(1, 0),
    records=(400_000, 20_000),
    leaders=(3_000, 100),
    leader_kills=((5, 2), (1, 1)),
    partitions=(10_000, 200),
    starts=((3, 1), (1, 1)),
)

"""How much work a run does."""

from dataclasses import dataclass

KIB, MIB = 1024, 1024 * 1024


@dataclass(frozen=True)
class Plan:
    name: str
    repetitions: int
    warm_up_s: float  # of every broker, before the first job
    raw_requests: dict[int, int]  # by batch size in bytes
    raw_acks: tuple[str, ...]
    fetches: int
    records: dict[int, int]  # by record size in bytes
    java_records: dict[int, int]
    latency_records: int
    starts: int
    idle_s: float
    connections: int
    connection_rounds: int
    traffic_gb: int
    crashed_log_bytes: int
    restarts: int
    partitions: tuple[int, int]  # few and many
    partition_produces: int
    partition_rounds: int


FULL = Plan(
    name="full",
    repetitions=7,
    warm_up_s=15,
    raw_requests={16 * KIB: 24_000, MIB: 480},
    raw_acks=("all",),
    fetches=2_000,
    records={1_000: 500_000, 100: 1_000_000},
    java_records={1_000: 400_000, 100: 2_000_000},
    latency_records=1_000,
    starts=5,
    idle_s=5,
    connections=5_000,
    connection_rounds=5,
    traffic_gb=10,
    crashed_log_bytes=1_000_000_000,
    restarts=5,
    partitions=(10, 10_000),
    partition_produces=3_000,
    partition_rounds=15,
)

QUICK = Plan(
    name="quick",
    repetitions=2,
    warm_up_s=3,
    raw_requests={16 * KIB: 6_000, MIB: 160},
    raw_acks=("all",),
    fetches=400,
    records={1_000: 60_000, 100: 150_000},
    java_records={1_000: 60_000, 100: 300_000},
    latency_records=400,
    starts=2,
    idle_s=2,
    connections=1_000,
    connection_rounds=1,
    traffic_gb=1,
    crashed_log_bytes=200_000_000,
    restarts=1,
    partitions=(10, 1_000),
    partition_produces=1_000,
    partition_rounds=2,
)

# Two versions against each other: many short turns, not few long ones, within 15 minutes.
VERSIONS = Plan(
    name="versions",
    repetitions=7,
    warm_up_s=3,
    raw_requests={16 * KIB: 12_000, MIB: 320},
    raw_acks=("all",),
    fetches=1_000,
    records={1_000: 200_000, 100: 400_000},
    java_records={1_000: 150_000, 100: 600_000},
    latency_records=300,
    starts=7,
    idle_s=0.5,
    connections=1_000,
    connection_rounds=5,
    traffic_gb=1,
    crashed_log_bytes=300_000_000,
    restarts=5,
    partitions=(10, 2_000),
    partition_produces=2_000,
    partition_rounds=7,
)


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


STALLS = {
    FULL.name: StallPlan(
        repetitions=5,
        kafka_warm_ups=1,
        section_s_min=4,
        ping_every_s=0.002,
        created=1_000,
        segments=5_000,
        compacted=400_000,
        describes=5_000,
        closed=20,
        closed_requests=1_000,
        many=10_000,
        metadatas=300,
        rounds=3,
        truncated=100_000,
        recovered_mb=500,
        recovered_partitions=200,
    ),
    QUICK.name: StallPlan(
        repetitions=1,
        kafka_warm_ups=0,
        section_s_min=1,
        ping_every_s=0.005,
        created=100,
        segments=200,
        compacted=20_000,
        describes=200,
        closed=4,
        closed_requests=100,
        many=500,
        metadatas=20,
        rounds=1,
        truncated=2_000,
        recovered_mb=10,
        recovered_partitions=10,
    ),
}


@dataclass(frozen=True)
class FairnessPlan:
    repetitions: int
    warm_ups: int
    section_s: float
    ping_every_s: float
    connections: int  # of each greedy client
    partitions: int  # for an administrator to ask about


FAIRNESS = {
    FULL.name: FairnessPlan(
        repetitions=7,
        warm_ups=1,
        section_s=6,
        ping_every_s=0.005,
        connections=4,
        partitions=1_000,
    ),
    QUICK.name: FairnessPlan(
        repetitions=1,
        warm_ups=0,
        section_s=1.5,
        ping_every_s=0.01,
        connections=2,
        partitions=100,
    ),
}


@dataclass(frozen=True)
class GroupsPlan:
    members: int
    heartbeat_s: float
    committers: int
    commits: int
    loaded: tuple[int, ...]  # groups
    failed_over: int


GROUPS = {
    FULL.name: GroupsPlan(
        members=500,
        heartbeat_s=0.2,
        committers=50,
        commits=200_000,
        loaded=(10_000, 100_000),
        failed_over=10_000,
    ),
    QUICK.name: GroupsPlan(
        members=500,
        heartbeat_s=0.2,
        committers=50,
        commits=20_000,
        loaded=(10_000,),
        failed_over=10_000,
    ),
}

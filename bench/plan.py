"""How much of everything a run does."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Plan:
    name: str
    repetitions: int
    raw_requests: dict[int, int]  # by batch size in bytes
    raw_acks: tuple[str, ...]
    fetches: int
    records: dict[int, int]  # by record size in bytes
    latency_records: int
    latency_rounds: int
    startups: int
    connections: int
    traffic_gb: int


KIB, MIB = 1024, 1024 * 1024

FULL = Plan(
    name="full",
    repetitions=7,
    raw_requests={KIB: 60_000, 16 * KIB: 24_000, MIB: 480},
    raw_acks=("all", "1"),
    fetches=2_000,
    records={1_000: 300_000, 100: 1_000_000},
    latency_records=2_000,
    latency_rounds=5,
    startups=9,
    connections=5_000,
    traffic_gb=0,
)

QUICK = Plan(
    name="quick",
    repetitions=3,
    raw_requests={KIB: 10_000, 16 * KIB: 6_000, MIB: 160},
    raw_acks=("all",),
    fetches=400,
    records={1_000: 60_000, 100: 150_000},
    latency_records=400,
    latency_rounds=1,
    startups=3,
    connections=1_000,
    traffic_gb=0,
)

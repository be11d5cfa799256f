"""What the chart shows: which figures, in which groups."""

from dataclasses import dataclass

from bench.jobs import (
    connections,
    java,
    latency,
    librdkafka,
    memory,
    partitions,
    raw,
    restart,
    startup,
)
from bench.plan import FULL, KIB, MIB, QUICK


@dataclass(frozen=True)
class Row:
    label: str
    job: str
    metric: str
    scale: float = 1.0
    goal: float | None = None


@dataclass(frozen=True)
class Panel:
    title: str
    unit: str
    rows: list[Row]
    logarithmic_from: float | None = None  # the value whose bar has no length; None: linear


def _many() -> list[int]:
    return sorted({*FULL.partitions, *QUICK.partitions})


_LATENCY = {
    "Java": latency.JAVA_JOB,
    "librdkafka": latency.CLIENT_JOB,
    "raw sockets": latency.RAW_JOB,
}

PANELS = [
    Panel(
        "Java clients, acks=all (more is better)",
        "thousand records/s",
        [
            Row("produce, 1 KB", java.produce_job(1_000), "records_per_s", 1e-3),
            Row("produce, 100 B", java.produce_job(100), "records_per_s", 1e-3),
            Row("consume, 1 KB", java.consume_job(1_000), "records_per_s", 1e-3),
            Row("consume, 100 B", java.consume_job(100), "records_per_s", 1e-3),
        ],
    ),
    Panel(
        "librdkafka from Python, acks=all (more is better)",
        "thousand records/s",
        [
            Row("produce, 1 KB", librdkafka.produce_job(1_000), "records_per_s", 1e-3),
            Row("produce, 100 B", librdkafka.produce_job(100), "records_per_s", 1e-3),
            Row("produce, 100 B, 16 KB batches", librdkafka.BATCHES_JOB, "records_per_s", 1e-3),
            Row("consume, 1 KB", librdkafka.consume_job(1_000), "records_per_s", 1e-3),
            Row("consume, 100 B", librdkafka.consume_job(100), "records_per_s", 1e-3),
        ],
    ),
    Panel(
        "Broker CPU for a million records of 1 KB (less is better)",
        "s",
        [
            Row("Java, produce", java.produce_job(1_000), "server_cpu_s_per_million"),
            Row("Java, consume", java.consume_job(1_000), "server_cpu_s_per_million"),
            Row("librdkafka, produce", librdkafka.produce_job(1_000), "server_cpu_s_per_million"),
            Row("librdkafka, consume", librdkafka.consume_job(1_000), "server_cpu_s_per_million"),
        ],
    ),
    Panel(
        "Raw throughput of one connection (more is better)",
        "MB/s",
        [
            Row("produce, 16 KB batches", raw.produce_job(16 * KIB), "mb_per_s", goal=410),
            Row("produce, 1 MB batches", raw.produce_job(MIB), "mb_per_s", goal=1000),
            Row("fetch from page cache", raw.FETCH_JOB, "gb_per_s", scale=1000, goal=1500),
        ],
    ),
    Panel(
        "End to end latency at low load, p50 (less is better)",
        "ms",
        [Row(name, job, "p50_ms", goal=0.5) for name, job in _LATENCY.items()],
    ),
    Panel(
        "End to end latency at low load, p99 (less is better)",
        "ms",
        [Row(name, job, "p99_ms") for name, job in _LATENCY.items()],
    ),
    Panel(
        "Start to first acknowledged produce (less is better)",
        "s",
        [
            Row("empty directory", startup.JOB, "first_ack_ms", 1e-3, goal=0.3),
            Row("after kill -9, log not flushed", restart.JOB, "first_ack_ms", 1e-3, goal=5),
            *(
                Row(f"{n:,} partitions", partitions.job(n), "first_ack_ms", 1e-3, goal=5)
                for n in _many()
            ),
        ],
    ),
    Panel(
        "Produce to one of many partitions, p50 (less is better)",
        "ms",
        [Row(f"{n:,} partitions", partitions.job(n), "p50_ms") for n in _many()],
    ),
    Panel(
        "Resident memory (less is better)",
        "MB",
        [
            Row("idle", startup.JOB, "rss_mb", goal=60),
            Row("after all traffic", memory.TRAFFIC_JOB, "rss_mb", goal=60),
            *(Row(f"{n:,} partitions", partitions.job(n), "rss_mb") for n in _many()),
        ],
    ),
    Panel(
        "An idle connection (less is better)",
        "KB",
        [Row("memory", connections.JOB, "kb_each", goal=20)],
    ),
]

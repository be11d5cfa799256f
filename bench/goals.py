"""The goals of the benchmark. All pages and the picture read them here.

A goal is a limit of Suwi's own figure, or of its ratio to Apache Kafka's in the same run. Where the
client or the kernel sets the limit, no server can pass it: then a share of the *bound* also counts,
which is the same client against the least server that can serve it.
"""

from dataclasses import dataclass

TIMES_KAFKA = "× Kafka"


@dataclass(frozen=True)
class Goal:
    text: str
    limit: float
    unit: str
    more: bool
    """More is better."""
    or_of_bound: float | None = None

    @property
    def is_of_kafka(self) -> bool:
        return self.unit == TIMES_KAFKA

    @property
    def wanted(self) -> str:
        share = f" or ≥ {self.or_of_bound:.0%} of the bound" if self.or_of_bound else ""
        return f"{'≥' if self.more else '≤'} {self.limit:,g} {self.unit}{share}"

    def is_met(self, value: float) -> bool:
        return value >= self.limit if self.more else value <= self.limit


def _at_least(
    text: str, limit: float, unit: str = TIMES_KAFKA, or_of_bound: float | None = None
) -> Goal:
    return Goal(text, limit, unit, True, or_of_bound)


def _at_most(text: str, limit: float, unit: str = TIMES_KAFKA) -> Goal:
    return Goal(text, limit, unit, False)


# One broker.
PRODUCE = _at_least("produce, 1 KB records", 1.2)
PRODUCE_SMALL = _at_least("produce, 100 B records in 16 KB batches", 1.0)
PRODUCE_RAW = _at_least("produce, prepared requests", 2.0)
CONSUME = _at_least("consume from the page cache", 1.0, or_of_bound=0.95)
LATENCY_P50 = _at_most("end to end latency, p50", 0.5, "ms")
LATENCY_P99 = _at_most("end to end latency, p99", 1.0)
START = _at_most("start to first acknowledged record", 0.1)
IDLE_MEMORY = _at_most("memory when idle", 0.1)
RESTART = _at_most("restart after kill -9, 1 GB of log", 0.1)
PARTITIONS_START = _at_most("start with 10,000 partitions", 0.1)
PARTITIONS_IDLE = _at_most("idle CPU with 10,000 partitions", 0.1)

# The event loop of one broker, and clients that share it.
CALLBACK_MAX = _at_most("longest callback of the event loop", 20, "ms")
CALLBACK_P999 = _at_most("callbacks of the event loop, p99.9", 10, "ms")
FAIRNESS = _at_most("small producer beside greedy clients, p99", 2, "× alone, or Kafka's")

# Three broker processes.
REPLICATED = _at_least("produce, three replicas", 1.0)
KILL = _at_most("kill -9 until every partition takes writes", 500, "ms")
KILL_MAX = _at_most("kill -9 until every partition takes writes, maximum", 1_000, "ms")
KILLS_LEFT_OUT = _at_most("kills that there was no time for", 0, "kills")
LEADERS_DIE = _at_most("a broker with 3,000 leaders dies", 2, "s")
ROLLING_RESTART = _at_most("rolling restart, longest silence", 0.2)
GROUPS_FAIL_OVER = _at_most("10,000 groups fail over", 1_000, "ms")
CREATE_PARTITIONS = _at_most("creating 10,000 partitions", 1.5)

# Groups and transactions.
REBALANCE = _at_most("a group of 500 members rebalances", 2, "s")
COMMITS_MEANWHILE = _at_most("another group's commits meanwhile, p99", 1.5)
COMMITS = _at_least("commits of 50 committers", 0.45)
COLD_LOAD = _at_most("cold load of 1,000,000 offsets", 2.5)
TRANSACTIONS_KEPT = _at_least("share of idempotent throughput kept", 1.0)
TRANSACTIONS_SINGLE = _at_least("transactions of one record, 50 producers", 1.0)

# Spark.
SPARK_SOURCE = _at_least("read a topic, 100 B, one core", 2, "× the connector")
SPARK_SINK = _at_least("topic to Delta table", 300_000, "rows/s")
SPARK_ICEBERG = _at_least("topic to Iceberg table", 0.8, "× the Delta table")
SPARK_OUTPUTS = _at_most("two outputs of one read, CPU", 0.65, "× two pipelines")
SPARK_FLOOR = _at_most("micro-batch at least", 500, "ms")
SPARK_JSON = _at_least("strict JSON into columns", 0.9, "× from_json")
SPARK_TABLE = _at_least("read a table", 0.8, "× the Parquet source", or_of_bound=0.95)

# The console beside one broker.
CONSOLE_COST = _at_most("broker CPU, three pages of the console open", 5, "%")
LIVE_COST = _at_most("broker CPU, one partition watched", 3, "%")
CONSOLE_COLD = _at_most("first read of a page, 10,000 partitions", 3, "s")
CONSOLE_WARM = _at_most("later reads of a page, 10,000 partitions", 1, "s")

# Access rules and quotas.
ACCESS_COST = _at_most("broker CPU of a request, 10,000 access rules and quotas", 3, "%")


def wanted_by_name() -> dict[str, str]:
    """For the texts of pages."""
    return {name: goal.wanted for name, goal in globals().items() if isinstance(goal, Goal)}


def number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"

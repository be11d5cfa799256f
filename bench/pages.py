"""The pages of `docs/benchmarks`: for each its data, a text, and a table with a row for a value."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from bench import goals
from bench.jobs import (
    access,
    cluster_failover,
    cluster_load,
    cluster_size,
    console,
    groups,
    java,
    latency,
    librdkafka,
    partitions,
    raw,
    restart,
    startup,
    transactions,
)
from bench.lines import Line, Lines, Row, rows_of, table
from bench.measure import Figure
from bench.plan import CLUSTER, CONSOLE, FULL, GROUPS, KIB, MIB, QUICK, TRANSACTIONS, ClusterPlan
from bench.report import Results, figure_tables, read, setting, write_json

_TEXTS = Path(__file__).parent


@dataclass(frozen=True)
class Page:
    """`NAME.json` has the figures, `NAME.md` is derived from them."""

    name: str
    title: str
    rows: Callable[[list[Figure]], list[Row]]
    tables: Callable[[list[Figure]], Iterable[str]]

    def write(self, directory: Path, results: Results) -> list[Row]:
        write_json(directory / f"{self.name}.json", results)
        return self.render(directory, results)

    def render(self, directory: Path, results: Results) -> list[Row]:
        text = (_TEXTS / f"how_to_read_{self.name}.md").read_text()
        text = text.format(**goals.wanted_by_name())
        lines = [f"# {self.title}", "", setting(results), "", text, *self.tables(results.figures)]
        (directory / f"{self.name}.md").write_text("\n".join(lines) + "\n")
        return self.rows(results.figures)

    def read(self, directory: Path) -> Results | None:
        """The results of an earlier run."""
        path = directory / f"{self.name}.json"
        return read(path) if path.exists() else None


def line_page(name: str, title: str, lines: Lines, *, has_details: bool = False) -> Page:
    """With details there is also a table for each job, with all that was measured."""

    def rows(figures: list[Figure]) -> list[Row]:
        return rows_of(lines(), figures)

    def tables(figures: list[Figure]) -> Iterable[str]:
        yield from table(rows(figures))
        if has_details:
            yield from figure_tables(figures, [line.job for line in lines()])

    return Page(name, title, rows, tables)


# -- one broker --------------------------------------------------------------------------------


def _broker_lines() -> Iterable[Line]:
    for name, job, goal in (
        ("produce 1 KB, Java", java.produce_job(1_000), goals.PRODUCE),
        ("produce 1 KB, librdkafka", librdkafka.produce_job(1_000), goals.PRODUCE),
        ("produce 100 B, Java", java.produce_job(100), goals.PRODUCE_SMALL),
        ("produce 100 B, librdkafka", librdkafka.BATCHES_JOB, goals.PRODUCE_SMALL),
        ("consume 1 KB, Java", java.consume_job(1_000), goals.CONSUME),
        ("consume 100 B, Java", java.consume_job(100), goals.CONSUME),
        ("consume 1 KB, librdkafka", librdkafka.consume_job(1_000), goals.CONSUME),
        ("consume 100 B, librdkafka", librdkafka.consume_job(100), goals.CONSUME),
    ):
        yield Line(name, job, "records_per_s", "k records/s", goal, 1e-3)
    for size in (16 * KIB, MIB):
        name = f"raw produce, {raw.batch_name(size)} batches"
        yield Line(name, raw.produce_job(size), "mb_per_s", "MB/s", goals.PRODUCE_RAW)
    yield Line("raw fetch", raw.FETCH_JOB, "gb_per_s", "GB/s", goals.CONSUME)
    for client, job in (
        ("Java", latency.JAVA_JOB),
        ("librdkafka", latency.CLIENT_JOB),
        ("raw sockets", latency.RAW_JOB),
    ):
        yield Line(f"latency, {client}, p50", job, "p50_ms", "ms", goals.LATENCY_P50)
        yield Line(f"latency, {client}, p99", job, "p99_ms", "ms", goals.LATENCY_P99)
    yield Line(goals.START.text, startup.JOB, "first_ack_ms", "ms", goals.START)
    yield Line(goals.IDLE_MEMORY.text, startup.JOB, "rss_mb", "MB", goals.IDLE_MEMORY)
    yield Line("restart after kill -9", restart.JOB, "first_ack_ms", "ms", goals.RESTART)
    for plan in (FULL, QUICK):
        many, job = f"{plan.partitions:,} partitions", partitions.job(plan.partitions)
        yield Line(f"start, {many}", job, "first_ack_ms", "ms", goals.PARTITIONS_START)
        yield Line(f"idle CPU, {many}", job, "cpu_percent", "%", goals.PARTITIONS_IDLE)


# -- groups and transactions -------------------------------------------------------------------


def _group_lines() -> Iterable[Line]:
    for plan in GROUPS.values():
        rebalance = groups.rebalance_job(plan.members)
        of = f"of {plan.members} members"
        yield Line(f"first generation {of}", rebalance, "form_s", "s", goals.REBALANCE)
        yield Line(f"a rebalance {of}", rebalance, "rebalance_s", "s", goals.REBALANCE)
        meanwhile = goals.COMMITS_MEANWHILE
        yield Line(meanwhile.text, rebalance, "commit_p99_ms", "ms", meanwhile)
        for count in (1, plan.committers):
            commits = groups.commits_job(plan.committers, count)
            name = f"commits of {plan.committers} committers of "
            name += "one group" if count == 1 else f"{count} groups"
            yield Line(name, commits, "commits_per_s", "/s", goals.COMMITS)
            cpu = f"{name}: CPU of the broker for one"
            yield Line(cpu, commits, "server_cpu_us_per_commit", "µs")
        for count in plan.loaded:
            offsets = count * groups.PARTITIONS
            name = f"cold load of {offsets:,} offsets of {count:,} groups"
            goal = goals.COLD_LOAD if offsets == 1_000_000 else None
            yield Line(name, groups.load_job(count), "load_s", "s", goal)
            yield Line(f"memory with {offsets:,} offsets", groups.load_job(count), "rss_mb", "MB")


def _transaction_lines() -> Iterable[Line]:
    for plan in TRANSACTIONS.values():
        for driver in transactions.DRIVERS:
            job, name = transactions.share_job(driver), driver.name
            yield Line(f"{name}: idempotent", job, "idempotent_per_s", "records/s")
            for size in plan.sizes:
                each = f"{name}: {size:,} records each"
                yield Line(each, job, f"records_per_s_{size}", "records/s")
                kept = f"kept_percent_{size}"
                yield Line(f"{each}, kept", job, kept, "%", goals.TRANSACTIONS_KEPT)
                cpu = f"{each}, broker CPU for one transaction"
                yield Line(cpu, job, f"server_cpu_us_{size}", "µs")
        for driver in transactions.DRIVERS:
            for count in plan.producers:
                job = transactions.rate_job(driver, count)
                name = f"{driver.name}: {count} producer{'s' if count > 1 else ''}"
                goal = goals.TRANSACTIONS_SINGLE if count == 50 else None
                yield Line(name, job, "transactions_per_s", "transactions/s", goal)
                cpu = f"{name}, broker CPU for one transaction"
                yield Line(cpu, job, "server_cpu_us", "µs")


# -- three broker processes --------------------------------------------------------------------


def _cluster_lines() -> Iterable[Line]:
    for name, job in (
        ("librdkafka", cluster_load.LIBRDKAFKA_JOB),
        ("Java", cluster_load.JAVA_JOB),
    ):
        text = f"{goals.REPLICATED.text}, {name}"
        yield Line(text, job, "records_per_s", "records/s", goals.REPLICATED)
        cpu = f"{text}: CPU of all brokers, a million records"
        yield Line(cpu, job, "server_cpu_s_per_million", "s CPU")
    job, acks = cluster_failover.KILL_JOB, "all_acks_ms"
    yield Line(goals.KILL.text, job, acks, "ms", goals.KILL)
    yield Line(goals.KILL_MAX.text, job, acks, "ms", goals.KILL_MAX, worst=True)
    for who in ("controller", "other"):
        text = f"the same, {'the active controller' if who == 'controller' else 'another broker'}"
        yield Line(text, job, f"{who}_{acks}", "ms", goals.KILL)
    left_out, goal = cluster_failover.LEFT_OUT, goals.KILLS_LEFT_OUT
    yield Line(goal.text, job, left_out, "kills", goal, worst=True)
    roll = cluster_failover.ROLL_JOB
    yield Line(goals.ROLLING_RESTART.text, roll, "silence_ms", "ms", goals.ROLLING_RESTART)
    yield Line("rolling restart", roll, "roll_s", "s")
    for plan in CLUSTER.values():
        yield from _sized_cluster_lines(plan)


def _sized_cluster_lines(plan: ClusterPlan) -> Iterable[Line]:
    text = f"{plan.groups:,} groups, coordinator killed: commit"
    job = cluster_failover.coordinator_job(plan.groups)
    yield Line(text, job, "first_commit_ms", "ms", goals.GROUPS_FAIL_OVER)
    text, job = f"{plan.leaders:,} leaders die: all led", cluster_size.leaders_job(plan.leaders)
    yield Line(text, job, "all_led_s", "s", goals.LEADERS_DIE)
    job = cluster_size.start_job(plan.partitions)
    yield Line(f"start with {plan.partitions:,} partitions, in sync", job, "in_sync_s", "s")
    text = f"creating {plan.partitions:,} partitions"
    yield Line(text, job, "create_s", "s", goals.CREATE_PARTITIONS)


# -- the console -------------------------------------------------------------------------------


def _console_lines() -> Iterable[Line]:
    goal = goals.CONSOLE_COST
    yield Line(f"{goal.text}: more", console.COST_JOB, "more_percent", "%", goal)
    live = goals.LIVE_COST
    yield Line(f"{live.text}: more", console.COST_JOB, "live_more_percent", "%", live)
    yield Line(
        "broker CPU, a console without pages: more", console.COST_JOB, "open_more_percent", "%"
    )
    sections = {
        "alone": "without it",
        "watched": "with it",
        "live": "live",
        "open": "without pages",
    }
    for name, text in sections.items():
        yield Line(f"broker CPU {text}", console.COST_JOB, f"{name}_cpu_percent", "%")
        yield Line(f"produced {text}", console.COST_JOB, f"{name}_records_per_s", "records/s")
    for plan in CONSOLE.values():
        job = console.pages_job(plan.partitions)
        for page in console.PAGES:
            for when, goal in (("cold", goals.CONSOLE_COLD), ("warm", goals.CONSOLE_WARM)):
                text = f"{page}, {plan.partitions:,} partitions, {when}"
                yield Line(text, job, f"{page}_{when}_s", "s", goal)


# -- access rules and quotas -------------------------------------------------------------------


def _access_lines() -> Iterable[Line]:
    for work, unit in access.WORKS.items():
        more = f"{work}: {goals.ACCESS_COST.text}: more"
        yield Line(more, access.JOB, f"{work}_more_percent", "%", goals.ACCESS_COST)
        for name, text in (("open", "without them"), ("guarded", "with them")):
            yield Line(f"{work} {text}", access.JOB, f"{work}_{name}_us", unit)


BROKER = line_page("results", "One broker", _broker_lines, has_details=True)
GROUPS_PAGE = line_page("groups", "Consumer groups", _group_lines)
TRANSACTIONS_PAGE = line_page("transactions", "Transactions", _transaction_lines)
CLUSTER_PAGE = line_page("cluster", "A cluster of processes", _cluster_lines)
CONSOLE_PAGE = line_page("console", "The console", _console_lines)
ACCESS_PAGE = line_page("access", "Access rules and quotas", _access_lines)

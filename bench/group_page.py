"""The page on consumer groups: as JSON, a table and a chart."""

from collections.abc import Iterable

from bench.jobs import groups
from bench.lines import Line, line_page
from bench.plan import GROUPS


def _lines() -> Iterable[Line]:
    for plan in GROUPS.values():
        rebalance = groups.rebalance_job(plan.members)
        of = f"of {plan.members} members"
        yield Line(f"first generation {of}", rebalance, "form_s", "s", 2)
        yield Line(f"a rebalance {of}", rebalance, "rebalance_s", "s", 2)
        yield Line("another group's commits meanwhile, p99", rebalance, "commit_p99_ms", "ms")
        for count in (1, plan.committers):
            commits = groups.commits_job(plan.committers, count)
            name = f"commits of {plan.committers} committers of "
            name += "one group" if count == 1 else f"{count} groups"
            yield Line(name, commits, "commits_per_s", "/s", 1.0, of_kafka=True, more=True)
            yield Line(
                f"{name}: CPU of the broker for one", commits, "server_cpu_us_per_commit", "µs"
            )
        for count in plan.loaded:
            offsets = f"{count * groups.PARTITIONS:,} offsets of {count:,} groups"
            limit = 5 if count == 10_000 else None
            yield Line(f"cold load of {offsets}", groups.load_job(count), "load_s", "s", limit)
            yield Line("memory then", groups.load_job(count), "rss_mb", "MB")
        killed = groups.failover_job(plan.failed_over)
        name = f"{plan.failed_over:,} groups, coordinator killed, until the first commit"
        yield Line(name, killed, "first_commit_ms", "ms", 1_000)


GROUPS_PAGE = line_page(
    "groups",
    "Consumer groups",
    _lines,
    {"s": "Rebalances and loading", "ms": "Waiting", "/s": "Commits (more is better)"},
)

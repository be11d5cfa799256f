"""The page on transactions: as JSON, a table and a chart."""

from collections.abc import Iterable

from bench.jobs import transactions
from bench.lines import Line, line_page
from bench.plan import TRANSACTIONS


def _lines() -> Iterable[Line]:
    for plan in TRANSACTIONS.values():
        for driver in transactions.DRIVERS:
            job, name = transactions.share_job(driver), driver.name
            yield Line(f"{name}: idempotent", job, "idempotent_per_s", "records/s")
            for size in plan.sizes:
                each = f"{name}: {size:,} records each"
                yield Line(each, job, f"records_per_s_{size}", "records/s")
                kept = f"kept_percent_{size}"
                yield Line(f"{each}, kept", job, kept, "%", 1.0, of_kafka=True, more=True)
                cpu = f"{each}, broker CPU for one transaction"
                yield Line(cpu, job, f"server_cpu_us_{size}", "µs")
        for driver in transactions.DRIVERS:
            for count in plan.producers:
                job = transactions.rate_job(driver, count)
                name = f"{driver.name}: {count} producer{'s' if count > 1 else ''}"
                yield Line(name, job, "transactions_per_s", "transactions/s")
                cpu = f"{name}, broker CPU for one transaction"
                yield Line(cpu, job, "server_cpu_us", "µs")


TRANSACTIONS_PAGE = line_page(
    "transactions",
    "Transactions",
    _lines,
    {
        "%": "Share of idempotent throughput kept (more is better)",
        "records/s": "Throughput of one producer (more is better)",
        "transactions/s": "Transactions of one record (more is better)",
    },
)

"""Ends a transaction that hangs: one that no coordinator knows."""

from functools import partial
from typing import NamedTuple

from suwi.admin.hanging_transactions import abort_hanging_transaction, find_open_transaction
from suwi.admin.text import time_text
from suwi.console.change import Plan, PlanRow
from suwi.console.clusters import ShownCluster


class OpenTransactionStart(NamedTuple):
    topic: str
    partition: int
    start_offset: int


async def abort_transaction(shown: ShownCluster, asked: OpenTransactionStart) -> Plan:
    name, index, start = asked
    found = await find_open_transaction(shown.client, *asked)
    place = f"the transaction of {found.partition} that begins at offset {start}"
    last_write = f"open, last write {time_text(found.producer.last_timestamp)}"
    return Plan(
        shown.command("transactions abort", name, index, options=["--start-offset", start]),
        partial(abort_hanging_transaction, shown.client, found),
        f"aborted {place}",
        [PlanRow(place, last_write, "aborted")],
        confirm=name,
    )

"""The consumer groups of a cluster, each with its lag."""

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from suwi.client.errors import reason
from suwi.client.group_lag import find_lags
from suwi.client.groups import ListedGroup, committed_offsets, list_groups
from suwi.console.clusters import TIMEOUT_S, ShownCluster
from suwi.console.page import Part, Query, cut
from suwi.model.errors import BrokerError
from suwi.model.ids import Offset, TopicPartition


class GroupRow(NamedTuple):
    group: str
    state: str
    type: str
    coordinator: int
    topics: Sequence[str]
    """Those that it has offsets of."""
    lag: int | None
    """In records, of the partitions whose leaders respond; None if its offsets are not known."""
    problem: str | None


class Groups(NamedTuple):
    part: Part
    rows: Sequence[GroupRow]
    silent: Sequence[str]
    """Brokers whose groups are not known, and why."""
    command: str


async def read_groups(shown: ShownCluster, query: Query) -> Groups:
    listed = await list_groups(shown.client, timeout_s=TIMEOUT_S)
    part, groups = cut(listed.groups, query, lambda group: group.name)
    return Groups(
        part,
        await _rows(shown, groups),
        [f"broker {node}: {why}" for node, why in listed.silent.items()],
        shown.command("groups list"),
    )


async def _rows(shown: ShownCluster, groups: Sequence[ListedGroup]) -> list[GroupRow]:
    """The ends of all partitions are read once, however many groups read them."""
    committed = await asyncio.gather(*(_committed(shown, group.name) for group in groups))
    partitions = {tp for found in committed if not isinstance(found, str) for tp in found}
    wanted: dict[TopicPartition, Offset | None] = dict.fromkeys(sorted(partitions))
    lags = await find_lags(shown.client, wanted, with_age=False)
    ends = {tp: lag.end for tp, lag in lags.items() if lag.end is not None}
    rows = []
    for group, found in zip(groups, committed, strict=True):
        topics: list[str] = []
        lag, problem = None, None
        if isinstance(found, str):
            problem = found
        else:
            topics = sorted({tp.topic for tp in found})
            lag = sum(max(0, ends[tp] - offset) for tp, offset in found.items() if tp in ends)
        rows.append(
            GroupRow(group.name, group.state, group.type, group.coordinator, topics, lag, problem)
        )
    return rows


async def _committed(shown: ShownCluster, group: str) -> dict[TopicPartition, Offset] | str:
    """Or why the offsets are not known."""
    try:
        return await committed_offsets(shown.client, group)
    except (BrokerError, OSError) as error:
        return reason(error)

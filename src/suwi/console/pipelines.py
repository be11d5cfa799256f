"""The pipelines that publish their status in a cluster."""

from collections.abc import Sequence
from typing import NamedTuple

from suwi.client.pipeline_status import STATUS_TOPIC, PipelineStatus, read_statuses
from suwi.console.clusters import ShownCluster
from suwi.console.page import Part, Query, cut


class Pipelines(NamedTuple):
    part: Part
    rows: Sequence[PipelineStatus]
    topic: str
    """Where they publish it."""
    command: str


async def read_pipelines(shown: ShownCluster, query: Query) -> Pipelines:
    statuses = await read_statuses(shown.client, shown.clock.now_ms())
    part, rows = cut(statuses, query, lambda status: status.pipeline)
    return Pipelines(part, rows, STATUS_TOPIC, shown.command("pipeline status"))

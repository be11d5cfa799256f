"""`suwi explain`."""

from typing import Annotated

import typer

from suwi.admin.explainer import explain_offsets, explanation_text
from suwi.cli.output import document, say
from suwi.cli.session import Json, Partition, Topic, on_cluster
from suwi.client.cluster import Cluster


@on_cluster
async def explain(
    cluster: Cluster,
    topic: Topic,
    partition: Partition,
    offsets: Annotated[
        list[int], typer.Argument(metavar="OFFSET", min=0, help="One or more offsets.")
    ],
    json: Json = False,
) -> None:
    """Say what an offset is or was.

    A record, committed, aborted or in an open transaction; a transaction's marker; compacted away;
    deleted at the log start; lost in an election; not committed yet; or never written.

    \b
    suwi explain orders 0 41 42 43
    """
    explained = await explain_offsets(cluster, topic, partition, offsets)
    if json:
        document(explained)
        return
    for fields in explained:
        say(f"{fields['offset']}: {explanation_text(fields)}")

"""`suwi topics describe --replicas`: the state of each replica, once or continuously."""

import asyncio
import sys
from collections.abc import Sequence
from typing import Any

from suwi.cli.options import Target
from suwi.cli.output import (
    document,
    drawn_table,
    flush,
    json_line,
    say,
    show_each,
    stop_when_output_closes,
    table,
)
from suwi.cli.session import existing_topic, run
from suwi.client.cluster import Cluster, TopicInfo
from suwi.client.replicas import PartitionReplicas, describe_replicas
from suwi.log.checkpoints import topic_id_text
from suwi.model.ids import NO_NODE, NO_TOPIC_ID, NodeId

_COLUMNS = "Replica Role Epoch LogStart LastStable HighWatermark LogEnd LagTime InSync".split()
_NUMBERS = "Replica Epoch LogStart LastStable HighWatermark LogEnd LagTime"
_PERIOD_S = 0.5
_STATE_KEYS = (
    "node role leader leader_epoch epochs log_start last_stable high_watermark log_end "
    "recovery_point problem"
).split()


def describe(target: Target, names: Sequence[str], *, follow: bool, json: bool) -> None:
    async def work(cluster: Cluster) -> None:
        if not follow:
            partitions = await _describe(cluster, names)
            if json:
                document(partitions)
            else:
                _show(partitions)
        elif sys.stdout.isatty() and not json:
            await _watch(cluster, names)
        else:
            async with stop_when_output_closes():
                await _repeat(cluster, names, json=json)

    run(target, work, interrupted=0)


# -- output ----------------------------------------------------------------------------------------


def _show(partitions: Sequence[dict[str, Any]]) -> None:
    def show(partition: dict[str, Any]) -> None:
        say(_title(partition))
        table(_COLUMNS, _rows(partition), numbers=_NUMBERS)

    show_each(partitions, show)
    if not partitions:
        say("there are no topics yet; `suwi topics create NAME` creates one")


async def _repeat(cluster: Cluster, names: Sequence[str], *, json: bool) -> None:
    """Print the replicas whenever they change, for a file or another program."""
    shown: list[dict[str, Any]] = []
    while True:
        partitions = await _describe(cluster, names)
        if _without_times(partitions) != shown:
            shown = _without_times(partitions)
            if json:
                json_line(partitions)
            else:
                _show(partitions)
                say()
            flush()
        await asyncio.sleep(_PERIOD_S)


def _without_times(partitions: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**p, "replicas": [{**r, "lag_ms": None} for r in p["replicas"]]} for p in partitions]


async def _watch(cluster: Cluster, names: Sequence[str]) -> None:
    """Update one view on the terminal continuously."""
    from rich.console import Console, Group
    from rich.live import Live
    from rich.text import Text

    console = Console(highlight=False, markup=False)
    with Live(console=console, auto_refresh=False, vertical_overflow="visible") as live:
        while True:
            parts: list[Any] = []
            for partition in await _describe(cluster, names):
                parts += [
                    Text(_title(partition), style="bold"),
                    drawn_table(_COLUMNS, _rows(partition), numbers=_NUMBERS),
                    Text(),
                ]
            live.update(Group(*parts, Text("Ctrl-C to stop", style="dim")), refresh=True)
            await asyncio.sleep(_PERIOD_S)


def _title(partition: dict[str, Any]) -> str:
    leader = partition["leader"]
    led = "has no leader" if leader is None else f"led by {leader}"
    epochs = next((r["epochs"] for r in partition["replicas"] if r["node"] == leader), None)
    history = "".join(f", {epoch} from {start}" for epoch, start in epochs or ())
    isr = ",".join(str(node) for node in partition["isr"]) or "none"
    name = f"{partition['topic']}-{partition['partition']}"
    return f"{name} {led}, in sync {isr}" + (f"; epochs{history[1:]}" if history else "")


def _rows(partition: dict[str, Any]) -> list[tuple[object, ...]]:
    return [_row(replica) for replica in partition["replicas"]]


def _row(replica: dict[str, Any]) -> tuple[object, ...]:
    if replica["problem"] is not None:
        rest = "-" * 6
        return (
            replica["node"],
            replica["role"],
            *rest,
            f"{replica['in_sync']}: {replica['problem']}",
        )
    return (
        replica["node"],
        replica["role"],
        replica["leader_epoch"],
        replica["log_start"],
        replica["last_stable"],
        replica["high_watermark"],
        replica["log_end"],
        _lag_text(replica),
        replica["in_sync"],
    )


def _lag_text(replica: dict[str, Any]) -> str:
    lag_ms = replica["lag_ms"]
    if replica["role"] == "leader":
        return "-"
    return "unknown" if lag_ms is None else f"{lag_ms} ms"


# -- data ------------------------------------------------------------------------------------------


async def _describe(cluster: Cluster, names: Sequence[str]) -> list[dict[str, Any]]:
    return [
        _fields(each) for each in await describe_replicas(cluster, await _topics(cluster, names))
    ]


async def _topics(cluster: Cluster, names: Sequence[str]) -> list[TopicInfo]:
    if not names:
        return [topic for topic in await cluster.topics() if not topic.is_internal]
    await cluster.refresh(list(dict.fromkeys(names)))
    return [await existing_topic(cluster, name) for name in dict.fromkeys(names)]


def _fields(found: PartitionReplicas) -> dict[str, Any]:
    partition = found.partition
    leader_report = next((s for s in found.states.values() if s["isr"] is not None), None)
    isr = list(partition.isr) if leader_report is None else leader_report["isr"]
    proposed = None if leader_report is None else leader_report["isr_proposed"]
    return {
        "topic": found.topic.name,
        "topic_id": None if found.topic.id == NO_TOPIC_ID else topic_id_text(found.topic.id),
        "partition": partition.index,
        "leader": None if partition.leader == NO_NODE else partition.leader,
        "leader_epoch": partition.leader_epoch,
        "isr": isr,
        "isr_proposed": proposed,
        "replicas": [
            {
                **_state(node, found),
                "lag_ms": _lag_ms(leader_report, node),
                "in_sync": _in_sync(node, isr, proposed),
            }
            for node in partition.replicas
        ],
    }


def _state(node: int, found: PartitionReplicas) -> dict[str, Any]:
    state = found.states.get(NodeId(node))
    if state is not None:
        return {key: state[key] for key in _STATE_KEYS}
    problem = found.unavailable.get(NodeId(node))
    return {**dict.fromkeys(_STATE_KEYS), "node": node, "role": "unknown", "problem": problem}


def _lag_ms(leader_report: dict[str, Any] | None, node: int) -> int | None:
    followers = leader_report["followers"] if leader_report is not None else []
    return next((f["lag_ms"] for f in followers if f["node"] == node), None)


def _in_sync(node: int, isr: Sequence[int], proposed: Sequence[int] | None) -> str:
    if proposed is not None and (node in isr) != (node in proposed):
        return "leaving" if node in isr else "joining"
    return "yes" if node in isr else "no"

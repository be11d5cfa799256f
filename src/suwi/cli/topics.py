"""`suwi topics`."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import typer

from suwi.admin import topic_changes
from suwi.admin.failure import Failure
from suwi.admin.missing_members import missing_text
from suwi.admin.reassignment import move as move_replicas
from suwi.admin.reassignment import plan_cancel, plan_move, start_moving
from suwi.admin.text import count_text, printable, size_text
from suwi.admin.topic_changes import (
    TopicChange,
    alter_topic,
    elect_preferred_leaders,
    plan_preferred_leaders,
    plan_record_deletion,
)
from suwi.admin.topic_descriptions import (
    PartitionDescription,
    ReplicaDescriptions,
    TopicDescription,
    describe_topics,
    describe_topics_replicas,
    id_text,
    summary,
    unknown_topic,
)
from suwi.cli.output import (
    Part,
    complain,
    document,
    flush,
    ignore,
    is_terminal,
    json_line,
    or_dash,
    redraw,
    say,
    say_at_once,
    show_each,
    show_parts,
    stop_when_output_closes,
    table,
)
from suwi.cli.session import (
    DEFAULT_BROKER,
    INTERRUPTED,
    OK,
    Broker,
    CommandConfig,
    DryRun,
    Json,
    Partition,
    Target,
    Topic,
    Yes,
    confirm_deletion,
    on_cluster,
    pairs,
    run,
)
from suwi.client.admin import Admin, CreatedTopic
from suwi.client.cluster import Cluster
from suwi.env import SystemClock
from suwi.model.errors import BrokerError, TopicAlreadyExists, UnknownTopicOrPartition

app = typer.Typer(rich_markup_mode=None, no_args_is_help=True, add_completion=False)

_DEFAULT = -1
_NO_TOPICS = "there are no topics yet; `suwi topics create NAME` creates one"
_REPLICA_COLUMNS = "Replica Role Epoch LogStart LastStable HighWatermark LogEnd LagTime InSync"
_REPLICA_NUMBERS = "Replica Epoch LogStart LastStable HighWatermark LogEnd LagTime"
_PERIOD_S = 0.5

_Names = Annotated[list[str], typer.Argument(metavar="TOPIC", help="Names of topics.")]


# -- create and list -------------------------------------------------------------------------------


@app.command()
@on_cluster
async def create(
    cluster: Cluster,
    names: _Names,
    partitions: Annotated[
        int | None,
        typer.Option("--partitions", "-p", metavar="N", min=1, help="Default: the broker's."),
    ] = None,
    replication_factor: Annotated[
        int | None,
        typer.Option(
            "--replication-factor", "-r", metavar="N", min=1, help="Default: the broker's."
        ),
    ] = None,
    config: Annotated[
        list[str] | None,
        typer.Option("--config", "-c", metavar="KEY=VALUE", help="A setting; repeatable."),
    ] = None,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="Do not fail if the topic exists.")
    ] = False,
    dry_run: DryRun = False,
    json: Json = False,
) -> int:
    """Create topics.

    \b
    suwi topics create orders --partitions 3 --config retention.ms=86400000
    """
    configs = pairs(config, "--config")
    created: list[CreatedTopic] = []
    failed = 0
    for name in names:
        try:
            created.append(
                await Admin(cluster).create_topic(
                    name,
                    partitions=partitions or _DEFAULT,
                    replication_factor=replication_factor or _DEFAULT,
                    configs=configs,
                    validate_only=dry_run,
                )
            )
        except TopicAlreadyExists:
            if not if_not_exists:
                complain(f"topic {name!r} already exists")
                failed = 1
            elif not json:
                say(f"{printable(name)} already exists")
        except BrokerError as error:
            complain(f"{printable(name)}: {error.message}")
            failed = 1
        else:
            if not json:
                say(_created_text(created[-1], dry_run))
    if json:
        keys = "topic", "topic_id", "partition_count", "replication_factor"
        rows = [(each.name, id_text(each.id), *each[2:]) for each in created]
        document([dict(zip(keys, row, strict=True)) for row in rows])
    return failed


def _created_text(topic: CreatedTopic, dry_run: bool) -> str:
    verb = "would create" if dry_run else "created"
    if topic.partition_count < 0:
        return f"{verb} {topic.name}"
    partitions = count_text(topic.partition_count, "partition")
    return f"{verb} {topic.name}: {partitions}, replication factor {topic.replication_factor}"


@app.command("list")
@on_cluster
async def list_(
    cluster: Cluster,
    internal: Annotated[bool, typer.Option("--internal", help="Include internal topics.")] = False,
    json: Json = False,
) -> None:
    """List all topics."""
    topics = [summary(t) for t in await cluster.topics() if internal or not t.is_internal]
    if json:
        document(topics)
    elif topics:
        table(
            ("Topic", "Partitions", "ReplicationFactor"),
            [(t.topic, t.partition_count, t.replication_factor) for t in topics],
            numbers="Partitions ReplicationFactor",
        )
    else:
        say(_NO_TOPICS)


# -- describe --------------------------------------------------------------------------------------


@app.command()
def describe(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="TOPIC", help="Default: all topics.")
    ] = None,
    replicas: Annotated[
        bool, typer.Option("--replicas", help="Show the state and the lag of each replica.")
    ] = False,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="With --replicas: update until Ctrl-C.")
    ] = False,
    json: Json = False,
    broker: Broker = DEFAULT_BROKER,
    command_config: CommandConfig = None,
) -> None:
    """Show settings, leaders, replicas and offsets.

    Without a name: of all topics except internal ones.
    """
    if follow and not replicas:
        raise typer.BadParameter("requires --replicas", param_hint="--follow")

    async def work(cluster: Cluster) -> None:
        if replicas:
            await _describe_replicas(cluster, names or [], follow=follow, json=json)
            return
        described = await describe_topics(cluster, names or [])
        if json:
            document(described)
        else:
            show_each(described, _show)

    run(Target(broker, command_config), work, interrupted=OK if replicas else INTERRUPTED)


def _show(topic: TopicDescription) -> None:
    configs = ", ".join(f"{key}={value}" for key, value in topic.configs.items())
    say(f"Topic              {topic.topic}")
    say(f"TopicId            {topic.topic_id or 'unknown'}")
    say(f"PartitionCount     {topic.partition_count}")
    say(f"ReplicationFactor  {topic.replication_factor}")
    say(f"Configs            {printable(configs) or 'none'}")
    say()
    table(
        "Partition Leader Replicas Isr StartOffset EndOffset Size".split(),
        map(_row, topic.partitions),
        numbers="Partition StartOffset EndOffset Size",
    )
    for partition in topic.partitions:
        if partition.problem is not None:
            say(f"partition {partition.partition}: {printable(partition.problem)}")
    now_ms = SystemClock().now_ms()
    for member in topic.missing:
        say(f"partition {member.partition}: {printable(missing_text(member, now_ms))}")


def _row(partition: PartitionDescription) -> tuple[object, ...]:
    return (
        partition.partition,
        "none" if partition.leader is None else partition.leader,
        ",".join(map(str, partition.replicas)),
        ",".join(map(str, partition.isr)),
        or_dash(partition.start_offset),
        or_dash(partition.end_offset),
        "-" if partition.size_bytes is None else size_text(partition.size_bytes),
    )


# -- describe --replicas ---------------------------------------------------------------------------


async def _describe_replicas(
    cluster: Cluster, names: Sequence[str], *, follow: bool, json: bool
) -> None:
    async def read() -> Iterator[Part]:
        return _replica_parts(await describe_topics_replicas(cluster, names))

    if follow and is_terminal() and not json:
        await redraw(read, _PERIOD_S)
    elif follow:
        async with stop_when_output_closes():
            await _print_changes(cluster, names, json=json)
    found = await describe_topics_replicas(cluster, names)
    if json:
        document(found)
    elif found:
        show_parts(_replica_parts(found))
    else:
        say(_NO_TOPICS)


async def _print_changes(cluster: Cluster, names: Sequence[str], *, json: bool) -> None:
    """Print the replicas whenever they change, for a file or another program."""
    shown: list[object] = []
    while True:
        found = await describe_topics_replicas(cluster, names)
        without_times = [
            each._replace(replicas=[{**r, "lag_ms": None} for r in each.replicas]) for each in found
        ]
        if without_times != shown:
            shown = [*without_times]
            if json:
                json_line(found)
            else:
                show_parts(_replica_parts(found))
                say()
            flush()
        await asyncio.sleep(_PERIOD_S)


def _replica_parts(found: Sequence[ReplicaDescriptions]) -> Iterator[Part]:
    for number, partition in enumerate(found):
        if number:
            yield ""
        yield _title(partition)
        yield _REPLICA_COLUMNS, list(map(_replica_row, partition.replicas)), _REPLICA_NUMBERS


def _title(partition: ReplicaDescriptions) -> str:
    leader = partition.leader
    led = "has no leader" if leader is None else f"led by {leader}"
    epochs = next((r["epochs"] for r in partition.replicas if r["node"] == leader), None)
    history = "".join(f", {epoch} from {start}" for epoch, start in epochs or ())
    isr = ",".join(map(str, partition.isr)) or "none"
    name = f"{partition.topic}-{partition.partition}"
    return f"{name} {led}, in sync {isr}" + (f"; epochs{history[1:]}" if history else "")


def _replica_row(replica: Mapping[str, Any]) -> tuple[object, ...]:
    if replica["problem"] is not None:
        in_sync = f"{replica['in_sync']}: {replica['problem']}"
        return (replica["node"], replica["role"], *"------", in_sync)
    lag_ms = "unknown" if replica["lag_ms"] is None else f"{replica['lag_ms']} ms"
    return (
        replica["node"],
        replica["role"],
        replica["leader_epoch"],
        replica["log_start"],
        replica["last_stable"],
        replica["high_watermark"],
        replica["log_end"],
        "-" if replica["role"] == "leader" else lag_ms,
        replica["in_sync"],
    )


# -- alter and delete ------------------------------------------------------------------------------


@app.command()
@on_cluster
async def alter(
    cluster: Cluster,
    name: Topic,
    partitions: Annotated[
        int | None,
        typer.Option(
            "--partitions", "-p", metavar="N", min=1, help="The new number of partitions."
        ),
    ] = None,
    replication_factor: Annotated[
        int | None,
        typer.Option(
            "--replication-factor",
            "-r",
            metavar="N",
            min=1,
            help="The new number of replicas of each partition.",
        ),
    ] = None,
    config: Annotated[
        list[str] | None,
        typer.Option("--config", "-c", metavar="KEY=VALUE", help="Set a key; repeatable."),
    ] = None,
    unset: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY", help="Reset a key to its default; repeatable."),
    ] = None,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Add partitions to a topic, or change its settings or its number of replicas."""
    values: dict[str, str | None] = {**pairs(config, "--config")}
    for key in unset or []:
        if key in values:
            raise typer.BadParameter(f"{key} is both set and unset", param_hint="--unset")
        values[key] = None
    if partitions is None and replication_factor is None and not values:
        raise typer.BadParameter(
            "give a change: --partitions, --replication-factor, --config or --unset"
        )
    change = TopicChange(partitions, replication_factor, values)
    topic = await alter_topic(
        cluster, name, change, ignore if json else say_at_once, dry_run=dry_run
    )
    if json:
        document(
            {
                "topic": name,
                "partition_count": partitions or len(topic.partitions),
                "replication_factor": replication_factor or summary(topic).replication_factor,
                "configs": values,
                "dry_run": dry_run,
            }
        )
        return
    changes = [] if partitions is None else [count_text(partitions, "partition")]
    changes += [] if replication_factor is None else [f"replication factor {replication_factor}"]
    changes += [f"{k} unset" if v is None else f"{k}={v}" for k, v in values.items()]
    say(f"{'would change' if dry_run else 'changed'} {name}: {printable(', '.join(changes))}")


@app.command()
@on_cluster
async def delete(
    cluster: Cluster,
    names: _Names,
    yes: Yes = False,
    if_exists: Annotated[
        bool, typer.Option("--if-exists", help="Do not fail if a topic does not exist.")
    ] = False,
    json: Json = False,
) -> None:
    """Delete topics with all their records."""
    known = {topic.name: topic for topic in await cluster.topics()}
    wanted = [name for name in dict.fromkeys(names) if name in known]
    missing = [name for name in dict.fromkeys(names) if name not in known]
    if missing and not if_exists:
        raise Failure(unknown_topic(missing[0], list(known), can_create=False))
    if not yes and wanted:
        what = f"topic {wanted[0]}" if len(wanted) == 1 else f"{len(wanted)} topics"
        confirm_deletion(f"deleting {', '.join(wanted)}", f"Delete {what} with all records?")
    for name in wanted:
        try:
            await Admin(cluster).delete_topic(name)
        except UnknownTopicOrPartition:
            if not if_exists:
                raise
        if not json:
            say(f"deleted {name}")
    if json:
        document([{"topic": name, "topic_id": id_text(known[name].id)} for name in wanted])


@app.command()
@on_cluster
async def delete_records(
    cluster: Cluster,
    name: Topic,
    partition: Partition,
    before: Annotated[
        int | None,
        typer.Option(metavar="N", min=0, help="The first offset to keep. Default: the end."),
    ] = None,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Delete the records of a partition before an offset.

    \b
    suwi topics delete-records orders 0 --before 1000
    """
    plan = await plan_record_deletion(cluster, name, partition, before)
    if not yes:
        what = f"offsets {plan.start} to {plan.before - 1} of {plan.partition}"
        confirm_deletion(f"deleting {what}", f"Delete {what}?")
    start = await topic_changes.delete_records(cluster, plan)
    if json:
        document({**plan.partition._asdict(), "start_offset": start})
    else:
        say(f"{plan.partition} begins at offset {start}")


@app.command()
@on_cluster
async def elect(
    cluster: Cluster,
    names: Annotated[
        list[str] | None, typer.Argument(metavar="TOPIC", help="Default: all topics.")
    ] = None,
) -> int:
    """Elect the preferred leader of partitions that another broker leads: their first replica.

    \b
    suwi topics elect orders
    """
    changes = await plan_preferred_leaders(cluster, names or [])
    results = await elect_preferred_leaders(cluster, changes)
    for change in changes:
        why = results.get(change.partition)
        if why is None:
            say(f"{change.partition} is led by {change.preferred}")
        else:
            complain(f"{change.partition}: {why}")
    return int(any(results.values()))


@app.command()
@on_cluster
async def move(
    cluster: Cluster,
    name: Topic,
    partition: Partition,
    to: Annotated[
        str | None,
        typer.Option(metavar="N,M", help="The brokers of its replicas, preferred leader first."),
    ] = None,
    cancel: Annotated[bool, typer.Option("--cancel", help="Cancel its reassignment.")] = False,
) -> None:
    """Move the replicas of a partition to other brokers, and wait for it.

    \b
    suwi topics move orders 0 --to 2,3
    suwi topics move orders 0 --cancel
    """
    nodes = (to or "").split(",")
    if cancel == (to is not None) or not (cancel or all(n.strip().isdecimal() for n in nodes)):
        raise typer.BadParameter("name brokers with --to 1,2,3, or give --cancel")
    if cancel:
        await start_moving(cluster, await plan_cancel(cluster, name, partition))
        say(f"cancelled the reassignment of {printable(name)}-{partition}")
        return
    targets = await plan_move(cluster, name, partition, [int(node) for node in nodes])
    while not await move_replicas(cluster, targets, say_at_once):
        pass
    say(f"{printable(name)}-{partition} has replicas on {to}")

"""Implementation of `suwi topics`."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from suwi.cli.options import Target
from suwi.cli.output import (
    Failure,
    complain,
    count_text,
    document,
    printable,
    say,
    show_each,
    size_text,
    table,
)
from suwi.cli.reassign import change_replication_factor
from suwi.cli.session import confirm_deletion, existing_topic, run, unknown_topic
from suwi.client.admin import (
    Admin,
    ConfigSource,
    CreatedTopic,
    ReplicaSize,
    Resource,
    ResourceType,
)
from suwi.client.cluster import Cluster, TopicInfo
from suwi.client.offsets import EARLIEST, LATEST, FoundOffset, find_offsets
from suwi.log.checkpoints import topic_id_text
from suwi.model.errors import BrokerError, TopicAlreadyExists, UnknownTopicOrPartition
from suwi.model.ids import NO_NODE, NO_TOPIC_ID, TopicPartition

_DEFAULT = -1


class NewTopics(NamedTuple):
    names: Sequence[str]
    partitions: int | None
    replication_factor: int | None
    configs: dict[str, str]
    if_not_exists: bool
    dry_run: bool


class Changes(NamedTuple):
    partitions: int | None
    replication_factor: int | None
    values: dict[str, str | None]


# -- create ----------------------------------------------------------------------------------------


def create(target: Target, new: NewTopics, *, json: bool) -> None:
    async def work(cluster: Cluster) -> int:
        admin = Admin(cluster)
        created: list[CreatedTopic] = []
        failed = 0
        for name in new.names:
            try:
                created.append(
                    await admin.create_topic(
                        name,
                        partitions=new.partitions or _DEFAULT,
                        replication_factor=new.replication_factor or _DEFAULT,
                        configs=new.configs,
                        validate_only=new.dry_run,
                    )
                )
            except TopicAlreadyExists:
                if not new.if_not_exists:
                    complain(f"topic {name!r} already exists")
                    failed = 1
                elif not json:
                    say(f"{printable(name)} already exists")
            except BrokerError as error:
                complain(f"{printable(name)}: {error.message}")
                failed = 1
            else:
                if not json:
                    say(_created_text(created[-1], new.dry_run))
        if json:
            document([_created_fields(topic) for topic in created])
        return failed

    run(target, work)


def _created_text(topic: CreatedTopic, dry_run: bool) -> str:
    verb = "would create" if dry_run else "created"
    if topic.partition_count < 0:
        return f"{verb} {topic.name}"
    partitions = count_text(topic.partition_count, "partition")
    return f"{verb} {topic.name}: {partitions}, replication factor {topic.replication_factor}"


def _created_fields(topic: CreatedTopic) -> dict[str, Any]:
    return {
        "topic": topic.name,
        "topic_id": _id_text(topic.id),
        "partition_count": topic.partition_count,
        "replication_factor": topic.replication_factor,
    }


def _id_text(topic_id: Any) -> str | None:
    return None if topic_id == NO_TOPIC_ID else topic_id_text(topic_id)


# -- list and describe -----------------------------------------------------------------------------


def list_all(target: Target, *, internal: bool, json: bool) -> None:
    async def work(cluster: Cluster) -> None:
        topics = [t for t in await cluster.topics() if internal or not t.is_internal]
        if json:
            document([_summary(topic) for topic in topics])
        elif topics:
            table(
                ("Topic", "Partitions", "ReplicationFactor"),
                [(t.name, len(t.partitions), _replication_factor(t)) for t in topics],
                numbers="Partitions ReplicationFactor",
            )
        else:
            say("there are no topics yet; `suwi topics create NAME` creates one")

    run(target, work)


def _summary(topic: TopicInfo) -> dict[str, Any]:
    return {
        "topic": topic.name,
        "topic_id": _id_text(topic.id),
        "partition_count": len(topic.partitions),
        "replication_factor": _replication_factor(topic),
        "is_internal": topic.is_internal,
    }


def _replication_factor(topic: TopicInfo) -> int:
    return max((len(partition.replicas) for partition in topic.partitions), default=0)


def describe(target: Target, names: Sequence[str], *, json: bool) -> None:
    async def work(cluster: Cluster) -> None:
        if names:
            topics = [await existing_topic(cluster, name) for name in dict.fromkeys(names)]
        else:
            topics = [topic for topic in await cluster.topics() if not topic.is_internal]
        partitions = {topic.name: [p.index for p in topic.partitions] for topic in topics}
        sizes = await Admin(cluster).replica_sizes(partitions) if topics else {}
        described = [await _describe(cluster, topic, sizes) for topic in topics]
        if json:
            document(described)
            return
        show_each(described, _show)

    run(target, work)


async def _describe(
    cluster: Cluster, topic: TopicInfo, sizes: Mapping[TopicPartition, Sequence[ReplicaSize]]
) -> dict[str, Any]:
    configs = await Admin(cluster).describe_configs(Resource(ResourceType.TOPIC, topic.name))
    led = [
        TopicPartition(topic.name, partition.index)
        for partition in topic.partitions
        if partition.leader != NO_NODE
    ]
    starts = await find_offsets(cluster, dict.fromkeys(led, EARLIEST))
    usable = [tp for tp, start in starts.items() if not isinstance(start, BrokerError)]
    ends = await find_offsets(cluster, dict.fromkeys(usable, LATEST))
    partitions = []
    for partition in topic.partitions:
        tp = TopicPartition(topic.name, partition.index)
        start = starts.get(tp)
        replicas = sizes.get(tp, [])
        on_leader = [r.size_bytes for r in replicas if r.node == partition.leader]
        partitions.append(
            {
                "partition": partition.index,
                "leader": None if partition.leader == NO_NODE else partition.leader,
                "leader_epoch": partition.leader_epoch,
                "replicas": list(partition.replicas),
                "isr": list(partition.isr),
                "offline_replicas": list(partition.offline),
                "start_offset": _offset(start),
                "end_offset": _offset(ends.get(tp)),
                "size_bytes": on_leader[0] if on_leader else None,
                "problem": str(start) if isinstance(start, BrokerError) else None,
            }
        )
    own = {c.name: c.value for c in configs if c.source == ConfigSource.TOPIC}
    return {**_summary(topic), "configs": own, "partitions": partitions}


def _offset(found: FoundOffset | BrokerError | None) -> int | None:
    return found.offset if isinstance(found, FoundOffset) else None


def _show(topic: dict[str, Any]) -> None:
    configs = ", ".join(f"{key}={value}" for key, value in topic["configs"].items())
    say(f"Topic              {topic['topic']}")
    say(f"TopicId            {topic['topic_id'] or 'unknown'}")
    say(f"PartitionCount     {topic['partition_count']}")
    say(f"ReplicationFactor  {topic['replication_factor']}")
    say(f"Configs            {printable(configs) or 'none'}")
    say()
    columns = "Partition Leader Replicas Isr StartOffset EndOffset Size"
    table(
        columns.split(),
        [_row(partition) for partition in topic["partitions"]],
        numbers="Partition StartOffset EndOffset Size",
    )
    for partition in topic["partitions"]:
        if partition["problem"] is not None:
            say(f"partition {partition['partition']}: {printable(partition['problem'])}")


def _row(partition: dict[str, Any]) -> tuple[object, ...]:
    size_bytes = partition["size_bytes"]
    return (
        partition["partition"],
        "none" if partition["leader"] is None else partition["leader"],
        ",".join(str(node) for node in partition["replicas"]),
        ",".join(str(node) for node in partition["isr"]),
        "-" if partition["start_offset"] is None else partition["start_offset"],
        "-" if partition["end_offset"] is None else partition["end_offset"],
        "-" if size_bytes is None else size_text(size_bytes),
    )


# -- alter and delete ------------------------------------------------------------------------------


def alter(
    target: Target,
    name: str,
    wanted: Changes,
    *,
    dry_run: bool,
    json: bool,
) -> None:
    partitions, factor, values = wanted

    async def work(cluster: Cluster) -> None:
        admin = Admin(cluster)
        topic = await existing_topic(cluster, name)
        resource = Resource(ResourceType.TOPIC, name)
        if partitions is not None:
            _refuse_fewer(topic, partitions)
        # All changes are validated before any is made, so that an error leaves all unchanged.
        for validate_only in (True,) if dry_run else (True, False):
            if partitions is not None:
                await admin.add_partitions(name, partitions, validate_only=validate_only)
            if values:
                await admin.alter_configs(resource, values, validate_only=validate_only)
            if factor is not None:
                await change_replication_factor(
                    cluster, name, factor, dry_run=validate_only, quiet=json
                )
        if json:
            document(
                {
                    "topic": name,
                    "partition_count": partitions or len(topic.partitions),
                    "replication_factor": factor or _replication_factor(topic),
                    "configs": values,
                    "dry_run": dry_run,
                }
            )
            return
        verb = "would change" if dry_run else "changed"
        changes = [] if partitions is None else [count_text(partitions, "partition")]
        changes += [] if factor is None else [f"replication factor {factor}"]
        changes += [f"{k} unset" if v is None else f"{k}={v}" for k, v in values.items()]
        say(f"{verb} {name}: {printable(', '.join(changes))}")

    run(target, work)


def _refuse_fewer(topic: TopicInfo, wanted: int) -> None:
    has = len(topic.partitions)
    if wanted < has:
        raise Failure(f"{topic.name} has {has} partitions: they can be added, never removed")
    if wanted == has:
        raise Failure(f"{topic.name} has {count_text(has, 'partition')} already")


def delete(
    target: Target, names: Sequence[str], *, is_confirmed: bool, if_exists: bool, json: bool
) -> None:
    async def work(cluster: Cluster) -> int:
        known = {topic.name: topic for topic in await cluster.topics()}
        wanted = [name for name in dict.fromkeys(names) if name in known]
        missing = [name for name in dict.fromkeys(names) if name not in known]
        if missing and not if_exists:
            raise Failure(unknown_topic(missing[0], list(known), can_create=False))
        if not is_confirmed and wanted:
            what = f"topic {wanted[0]}" if len(wanted) == 1 else f"{len(wanted)} topics"
            question = f"Delete {what} with all records?"
            confirm_deletion(f"deleting {', '.join(wanted)}", question)
        for name in wanted:
            try:
                await Admin(cluster).delete_topic(name)
            except UnknownTopicOrPartition:
                if not if_exists:
                    raise
            if not json:
                say(f"deleted {name}")
        if json:
            document([{"topic": name, "topic_id": _id_text(known[name].id)} for name in wanted])
        return 0

    run(target, work)

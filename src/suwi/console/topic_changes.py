"""Changes of topics: create, delete, more partitions, settings, deletion of old records."""

from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

from suwi.admin import topic_changes as admin
from suwi.admin.text import count_text, size_text
from suwi.admin.topic_changes import TopicChange, alter_topic
from suwi.admin.topic_descriptions import existing_topic
from suwi.client.admin import Admin, Resource, ResourceType
from suwi.console.change import Count, Plan, PlanRow
from suwi.console.clusters import ShownCluster


class NewTopic(NamedTuple):
    topic: str
    partitions: Count | None
    """None: the broker's default, as for the replication factor."""
    replication_factor: Count | None
    configs: Mapping[str, str]


async def create_topic(shown: ShownCluster, asked: NewTopic) -> Plan:
    create = partial(
        Admin(shown.client).create_topic,
        asked.topic,
        partitions=_or_default(asked.partitions),
        replication_factor=_or_default(asked.replication_factor),
        configs=asked.configs,
    )
    would = await create(validate_only=True)
    options: list[object] = []
    options += [] if asked.partitions is None else ["--partitions", asked.partitions]
    if asked.replication_factor is not None:
        options += ["--replication-factor", asked.replication_factor]
    for key, value in asked.configs.items():
        options += ["--config", f"{key}={value}"]
    rows = [
        PlanRow("partitions", "", str(would.partition_count)),
        PlanRow("replication factor", "", str(would.replication_factor)),
    ]
    return Plan(
        shown.command("topics create", asked.topic, options=options),
        create,
        f"created {asked.topic}",
        [r for r in rows if r.after != "-1"],
    )


def _or_default(number: int | None) -> int:
    return -1 if number is None else number


class OldTopic(NamedTuple):
    topic: str


async def delete_topic(shown: ShownCluster, asked: OldTopic) -> Plan:
    name, admin = asked.topic, Admin(shown.client)
    partitions = [each.index for each in (await existing_topic(shown.client, name)).partitions]
    sizes = await admin.replica_sizes({name: partitions})
    size_bytes = sum(replica.size_bytes for found in sizes.values() for replica in found)
    rows = [
        PlanRow("partitions", str(len(partitions)), "0"),
        PlanRow("size of all replicas", size_text(size_bytes), "0 B"),
    ]
    command = shown.command("topics delete", name, options=["--yes"])
    delete = partial(admin.delete_topic, name)
    return Plan(command, delete, f"deleted {name}", rows, confirm=name)


class MorePartitions(NamedTuple):
    topic: str
    partitions: Count


async def add_partitions(shown: ShownCluster, asked: MorePartitions) -> Plan:
    name, count = asked
    alter = partial(alter_topic, shown.client, name, TopicChange(partitions=count), _ignore)
    topic = await alter(dry_run=True)
    return Plan(
        shown.command("topics alter", name, options=["--partitions", count]),
        partial(alter, dry_run=False),
        f"{name} has {count_text(count, 'partition')}",
        [PlanRow("partitions", str(len(topic.partitions)), str(count))],
        ["Records with the same key may go to another partition than before."],
    )


class TopicConfigs(NamedTuple):
    topic: str
    configs: Mapping[str, str | None]
    """A value of null unsets the key."""


async def set_configs(shown: ShownCluster, asked: TopicConfigs) -> Plan:
    name, configs = asked
    alter = partial(alter_topic, shown.client, name, TopicChange(configs=configs), _ignore)
    await alter(dry_run=True)
    resource = Resource(ResourceType.TOPIC, name)
    entries = await Admin(shown.client).describe_configs(resource, keys=list(configs))
    before = {entry.name: entry.value or "" for entry in entries}
    options: list[str] = []
    for key, value in configs.items():
        options += ["--unset", key] if value is None else ["--config", f"{key}={value}"]
    return Plan(
        shown.command("topics alter", name, options=options),
        partial(alter, dry_run=False),
        f"changed {', '.join(configs)} of {name}",
        [PlanRow(k, before.get(k, ""), "default" if v is None else v) for k, v in configs.items()],
    )


class OldRecords(NamedTuple):
    topic: str
    partition: int
    before: int | None
    """None: all."""


async def delete_records(shown: ShownCluster, asked: OldRecords) -> Plan:
    plan = await admin.plan_record_deletion(shown.client, *asked)
    options = ["--before", plan.before, "--yes"]
    return Plan(
        shown.command("topics delete-records", *plan.partition, options=options),
        partial(admin.delete_records, shown.client, plan),
        f"{plan.partition} begins at offset {plan.before}",
        [PlanRow(f"{plan.partition}: first offset", str(plan.start), str(plan.before))],
        [f"{count_text(plan.before - plan.start, 'offset')} can no longer be read"],
        confirm=asked.topic,
        is_exact=True,
    )


def _ignore(_: str) -> None:
    """Nobody waits for progress."""

"""Implementation of `suwi consume --group`: read as a member of a consumer group, and commit."""

import contextlib

from suwi.cli.consume import RecordForm
from suwi.cli.options import Target
from suwi.cli.output import flush, stop_when_output_closes
from suwi.cli.session import existing_topic, run
from suwi.client.cluster import Cluster
from suwi.client.group_consumer import GroupConsumer, GroupSettings
from suwi.client.offsets import LATEST, list_offsets
from suwi.client.reader import Fetched, ReadSettings
from suwi.model.errors import BrokerError
from suwi.model.ids import Offset, TopicPartition


def consume_in_group(
    target: Target,
    topic: str,
    group: str,
    form: RecordForm,
    *,
    instance_id: str | None,
    from_beginning: bool,
    count: int | None,
    follow: bool,
    committed: bool,
) -> None:
    """Each record that was printed is committed before the next ones are read."""

    async def work(cluster: Cluster) -> None:
        info = await existing_topic(cluster, topic)
        partitions = [TopicPartition(topic, partition.index) for partition in info.partitions]
        ends = await list_offsets(
            cluster, dict.fromkeys(partitions, LATEST), committed_only=committed
        )
        settings = GroupSettings(
            instance_id=instance_id,
            offset_reset="earliest" if from_beginning else "latest",
            read=ReadSettings(committed_only=committed),
        )
        left = count
        async with (
            GroupConsumer(cluster, group, [topic], settings) as consumer,
            stop_when_output_closes(),
        ):
            while left is None or left > 0:
                fetched = await consumer.poll()
                printed, offsets = _print(fetched, form, left)
                left = None if left is None else left - printed
                if offsets:
                    # In a rebalance another member reads these records again.
                    with contextlib.suppress(BrokerError):
                        await consumer.commit(offsets)
                if not follow and _is_at_end(consumer, {p: e.offset for p, e in ends.items()}):
                    return

    run(target, work, interrupted=0)


def _print(
    fetched: list[Fetched], form: RecordForm, count: int | None
) -> tuple[int, dict[TopicPartition, Offset]]:
    """How many records were printed, and the offsets after them."""
    printed = 0
    offsets: dict[TopicPartition, Offset] = {}
    for each in fetched:
        for record in each.records:
            if printed == count:
                break
            form.show(each.partition, record)
            printed += 1
            offsets[each.partition] = Offset(record.offset + 1)
        else:
            if each.records:
                offsets[each.partition] = each.next_offset
    flush()
    return printed, offsets


def _is_at_end(consumer: GroupConsumer, ends: dict[TopicPartition, Offset]) -> bool:
    """Whether this member has read what it owns up to the end that was there at the start."""
    if not consumer.is_stable or len(consumer.positions) < len(consumer.assignment):
        return False
    return all(at >= ends.get(partition, Offset(0)) for partition, at in consumer.positions.items())

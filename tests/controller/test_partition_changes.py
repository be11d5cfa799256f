"""Changes of many partitions, and the store entries for them."""

import asyncio
from uuid import UUID

from suwi.controller.elections import BrokerLiveness, Election, Rules
from suwi.controller.partition_changes import (
    awaiting_positions,
    compute_changes,
    elect_preferred_all,
    shard_puts,
    without_elr,
)
from suwi.metadata.image import BrokerInfo, ClusterImage, PartitionState, Topic, decode_shard
from suwi.model.ids import NO_NODE, LeaderEpoch, NodeId, PartitionIndex, TopicId, TopicPartition

B1, B2, B3 = NodeId(1), NodeId(2), NodeId(3)
LIVE = {node: BrokerInfo(node, (), None, epoch=node) for node in (B1, B2, B3)}


def tp(topic: str, index: int) -> TopicPartition:
    return TopicPartition(topic, PartitionIndex(index))


def led_by(leader: NodeId, *others: NodeId) -> PartitionState:
    replicas = (leader, *others)
    return PartitionState(leader, LeaderEpoch(0), 0, replicas, replicas)


def image_of(**topics: list[PartitionState]) -> ClusterImage:
    made = {
        name: Topic(name, TopicId(UUID(int=number)), {}, tuple(states))
        for number, (name, states) in enumerate(topics.items())
    }
    return ClusterImage(topics=made, registered_brokers=LIVE, unfenced_brokers=LIVE)


def test_a_broker_failure_changes_exactly_its_partitions() -> None:
    image = image_of(
        a=[led_by(B1, B2), led_by(B2, B1), led_by(B2, B3)],
        b=[led_by(B3, B2), led_by(B1)],
    )
    decided = asyncio.run(
        compute_changes(
            image.topics.values(), BrokerLiveness(frozenset((B2, B3))), lambda _: Rules()
        )
    )
    assert {str(partition): s.leader for partition, s in decided.states.items()} == {
        "a-0": 2,
        "a-1": 2,
        "b-1": NO_NODE,
    }
    assert decided.elections == {tp("a", 0): Election.CLEAN}


def test_others_run_while_many_partitions_change() -> None:
    image = image_of(a=[led_by(B1, B2)] * 2000)

    async def scenario() -> tuple[int, int]:
        liveness = BrokerLiveness(frozenset((B2, B3)))
        deciding = asyncio.ensure_future(
            compute_changes(image.topics.values(), liveness, lambda _: Rules())
        )
        turns = 0
        while not deciding.done():
            turns += 1
            await asyncio.sleep(0)
        return turns, len(deciding.result().states)

    turns, changed = asyncio.run(scenario())
    assert changed == 2000
    assert turns >= 5


def test_rules_are_those_of_the_topic() -> None:
    image = image_of(
        careful=[led_by(B1, B2)._replace(isr=(B1,))], careless=[led_by(B1, B2)._replace(isr=(B1,))]
    )
    decided = asyncio.run(
        compute_changes(
            image.topics.values(),
            BrokerLiveness(frozenset((B2, B3))),
            lambda topic: Rules(unclean=topic.name == "careless"),
        )
    )
    assert decided.elected(Election.UNCLEAN) == [tp("careless", 0)]
    assert decided.states[tp("careful", 0)].leader == NO_NODE


def test_preferred_leader_elections_are_limited_per_decision() -> None:
    astray = led_by(B1, B2)._replace(leader=B2)
    image = image_of(a=[astray] * 5)
    assert len(elect_preferred_all(image, 3).states) == 3
    assert len(elect_preferred_all(image, 100).states) == 5


def test_only_the_shards_that_change_are_written() -> None:
    image = image_of(a=[led_by(B1, B2)] * 2500)
    changed = led_by(B1, B2)._replace(leader=B2)
    puts = list(shard_puts(image, {tp("a", 1000): changed, tp("a", 1999): changed}))
    assert [put.key for put in puts] == ["partitions/a/1"]
    states = decode_shard(puts[0].value)
    assert len(states) == 1000
    assert [index for index, state in enumerate(states) if state.leader == B2] == [0, 999]


def test_a_new_min_isr_clears_the_elr() -> None:
    image = image_of(a=[led_by(B1, B2)._replace(isr=(B1,), elr=(B2,)), led_by(B1, B2)])
    forgotten = without_elr(image, ["a"])
    assert list(forgotten) == [tp("a", 0)]
    assert (forgotten[tp("a", 0)].elr, forgotten[tp("a", 0)].partition_epoch) == ((), 1)


def test_partitions_await_positions_only_when_all_candidates_are_live() -> None:
    waiting = led_by(B1, B2)._replace(leader=NO_NODE, unclean_shutdown_replicas=(B1, B2))
    image = image_of(a=[waiting, waiting._replace(unclean_shutdown_replicas=(B1,)), led_by(B1)])
    assert list(awaiting_positions(image)) == [tp("a", 0)]

"""Metadata and DescribeConfigs of many topics: built once per image, in slices, one at a time."""

import asyncio
from collections.abc import Coroutine, Iterable
from dataclasses import replace
from types import MappingProxyType
from typing import Any, cast
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from suwi.handlers.describe_configs import DescribeConfigs
from suwi.handlers.image_replies import SLICE_UNITS, ImageReplies, Steps
from suwi.handlers.metadata import Metadata
from suwi.metadata.image import BrokerInfo, ClusterImage, Endpoint, NewTopic, PartitionState, Topic
from suwi.model.broker_config import parse_broker_config
from suwi.model.errors import BrokerError, InvalidTopic, NotController, RequestTimedOut
from suwi.model.ids import LeaderEpoch, NodeId, TopicId
from suwi.net.answers import Answer, Exclusive, Reply
from suwi.net.connection import ClientIdentity
from suwi.net.dispatch import Request
from suwi.replica.peers import SuspectedBrokers
from suwi.replica.replica_manager import ReplicaManager
from suwi.security.authorizer import Authorizer
from suwi.sim import Simulation
from suwi.wire.codec import encode_request, read_request, read_response
from suwi.wire.versions import APIS, ApiKey
from tests.handlers.requests import NO_CONNECTION

NODES = tuple(NodeId(n) for n in (1, 2, 3))
TOPIC, BROKER = 2, 4


def image_of(partitions: dict[str, int]) -> ClusterImage:
    state = PartitionState(NodeId(1), LeaderEpoch(7), 1, NODES, NODES[:2])
    topics = {
        name: Topic(name, TopicId(UUID(int=number)), {}, (state,) * count)
        for number, (name, count) in enumerate(partitions.items(), 1)
    }
    brokers = {
        n: BrokerInfo(n, (Endpoint("IN", f"in{n}", 9092), Endpoint("OUT", f"out{n}", 9093)))
        for n in NODES
    }
    return ClusterImage(
        1,
        "cluster",
        MappingProxyType(topics),
        MappingProxyType({topic.id: topic for topic in topics.values()}),
        registered_brokers=brokers,
        unfenced_brokers=brokers,
    )


class Holder:
    def __init__(self, image: ClusterImage) -> None:
        self.image = image


class FakeSuspectedBrokers:
    """No broker is suspected, unless a test says so; then the image changes during the wait."""

    def __init__(self) -> None:
        self.holder: Holder | None = None

    def affects(self, topics: object) -> bool:
        return self.holder is not None

    async def wait_for_election(self, topics: object) -> None:
        assert self.holder is not None
        await asyncio.sleep(0)
        self.holder.image = image_of({"elected": 1})


class Handlers:
    def __init__(self, partitions: dict[str, int]) -> None:
        self.holder = Holder(image_of(partitions))
        self.suspected_brokers = FakeSuspectedBrokers()
        self.created: list[str] = []
        replicas = cast(ReplicaManager, self.holder)
        config = parse_broker_config({"node.id": "1"}).config
        self.metadata = Metadata(
            replicas, self._create, config, cast(SuspectedBrokers, self.suspected_brokers)
        )
        self.configs = DescribeConfigs(replicas, config, NodeId(1))

    async def _create(self, new: NewTopic, _request: Request) -> None:
        await asyncio.sleep(0)
        self.created.append(new.name)
        known = {name: len(topic.partitions) for name, topic in self.holder.image.topics.items()}
        self.holder.image = image_of({**known, new.name: 1})


def request(api_key: int, version: int, fields: dict[str, Any], listener: str = "IN") -> Request:
    body = encode_request(api_key, version, fields)
    message = read_request(api_key, version, body)
    client = ClientIdentity(listener)
    return Request(api_key, version, 1, "test", memoryview(body), message, NO_CONNECTION, client)


def metadata(
    topics: Iterable[str] | None = None, version: int = 12, listener: str = "IN", **flags: bool
) -> Request:
    fields = {
        "topics": None if topics is None else [{"name": name, "topic_id": None} for name in topics],
        "allow_auto_topic_creation": flags.get("create", False),
        "include_topic_authorized_operations": flags.get("operations", False),
        "include_cluster_authorized_operations": False,
    }
    if version == 0 and topics is None:
        fields["topics"] = []
    return request(ApiKey.METADATA, version, fields, listener)


def configs(resources: Iterable[tuple[int, str]]) -> Request:
    asked = [
        {"resource_type": kind, "resource_name": name, "configuration_keys": None}
        for kind, name in resources
    ]
    fields = {"resources": asked, "include_synonyms": True, "include_documentation": True}
    return request(ApiKey.DESCRIBE_CONFIGS, 4, fields)


async def body_of(answer: Answer | Coroutine[Any, Any, Any]) -> bytes:
    reply = answer if isinstance(answer, Reply) else await cast(Exclusive, answer).reply
    assert isinstance(reply, Reply)
    (body,) = reply.chunks
    assert isinstance(body, bytes)
    return body


async def read(asked: Request, answer: Any) -> Any:
    return read_response(asked.api_key, asked.version, await body_of(answer))


# -- caching -------------------------------------------------------------------------------------


def test_the_same_request_at_the_same_image_is_encoded_once() -> None:
    async def scenario() -> None:
        handlers = Handlers({"a": 3})
        for handler, ask in (
            (handlers.metadata, metadata),
            (handlers.configs, lambda: configs([(BROKER, "1"), (TOPIC, "a")])),
        ):
            first = await body_of(handler(ask()))
            assert await body_of(handler(ask())) is first
            handlers.holder.image = replace(handlers.holder.image)
            again = await body_of(handler(ask()))
            assert again is not first, "a different image, even with the same content"
            assert again == first

    asyncio.run(scenario())


def test_another_listener_version_or_flag_is_another_reply() -> None:
    async def scenario() -> None:
        handlers = Handlers({"a": 1})
        asked = metadata()
        inside = await read(asked, handlers.metadata(asked))
        assert inside.brokers[0].host == "in1"
        asked = metadata(listener="OUT")
        assert (await read(asked, handlers.metadata(asked))).brokers[0].host == "out1"
        asked = metadata(version=9)
        assert (await read(asked, handlers.metadata(asked))).topics[0].name == "a"
        asked = metadata(operations=True)
        operations = (await read(asked, handlers.metadata(asked))).topics[0]
        assert operations.topic_authorized_operations > 0
        assert inside.topics[0].topic_authorized_operations < 0

    asyncio.run(scenario())


def test_a_change_of_the_image_is_seen_by_the_next_request() -> None:
    async def scenario() -> None:
        handlers = Handlers({"a": 1})
        asked = metadata()
        await body_of(handlers.metadata(asked))
        handlers.holder.image = image_of({"a": 1, "b": 2})
        topics = (await read(asked, handlers.metadata(asked))).topics
        assert [(t.name, len(t.partitions)) for t in topics] == [("a", 1), ("b", 2)]

        view = configs([(TOPIC, "a")])
        settings = (await read(view, handlers.configs(view))).results[0].configs
        assert {s.name: s.value for s in settings}["retention.ms"] == "604800000"
        changed = handlers.holder.image.topics["a"]._replace(configs={"retention.ms": "1000"})
        handlers.holder.image = replace(handlers.holder.image, topics={"a": changed})
        settings = (await read(view, handlers.configs(view))).results[0].configs
        assert {s.name: s.value for s in settings}["retention.ms"] == "1000"

    asyncio.run(scenario())


def test_a_requested_topic_is_created_although_the_same_request_was_cached_before() -> None:
    async def scenario() -> None:
        handlers = Handlers({"a": 1})
        asked = metadata(["a", "new"])
        for _ in range(2):
            topics = (await read(asked, handlers.metadata(asked))).topics
            assert [t.error_code for t in topics] == [0, 3]
        asked = metadata(["a", "new"], create=True)
        for _ in range(3):
            topics = (await read(asked, handlers.metadata(asked))).topics
            assert [t.error_code for t in topics] == [0, 0]
        assert handlers.created == ["new"]

    asyncio.run(scenario())


def test_without_a_controller_clients_are_sent_to_this_broker_which_forwards() -> None:
    async def scenario() -> None:
        handlers, asked = Handlers({"a": 1}), metadata(["a"])
        assert (await read(asked, handlers.metadata(asked))).controller_id == 1
        image = handlers.holder.image
        handlers.holder.image = replace(image, controller=NodeId(3))
        assert (await read(asked, handlers.metadata(asked))).controller_id == 3
        unfenced = {node: image.unfenced_brokers[node] for node in NODES[:2]}
        handlers.holder.image = replace(
            image, controller=NodeId(3), unfenced_brokers=MappingProxyType(unfenced)
        )
        assert (await read(asked, handlers.metadata(asked))).controller_id == 1

    asyncio.run(scenario())


@pytest.mark.parametrize("error", [NotController("none"), RequestTimedOut("late")])
def test_without_a_controller_missing_topics_are_waited_for_once(error: BrokerError) -> None:
    tried: list[str] = []

    async def create(new: NewTopic, _request: Request) -> None:
        tried.append(new.name)
        if new.name != "b":
            raise error

    async def scenario() -> None:
        handlers = Handlers({"a": 1})
        handlers.metadata._create = create
        asked = metadata(["a", "b", "c", "d"], create=True)
        topics = (await read(asked, handlers.metadata(asked))).topics
        later = ErrorCode.leader_not_available
        assert {t.name: t.error_code for t in topics} == {
            "a": 0,
            "b": later,
            "c": later,
            "d": later,
        }
        assert tried == ["b", "c"]

    asyncio.run(scenario())


def test_the_creation_of_many_missing_topics_ends_and_clients_ask_again() -> None:
    tried: list[str] = []
    names = [f"t{number}" for number in range(100)]

    async def create(new: NewTopic, _request: Request) -> None:
        tried.append(new.name)
        if new.name == "t1":
            raise InvalidTopic("as the test wants it")
        await asyncio.sleep(1)

    async def scenario() -> None:
        handlers = Handlers({})
        handlers.metadata._create = create
        asked = metadata(names, create=True)
        topics = (await read(asked, handlers.metadata(asked))).topics
        errors = {topic.name: topic.error_code for topic in topics}
        assert errors.pop("t1") == ErrorCode.invalid_topic_exception, "its own error"
        assert set(errors) == set(names) - {"t1"}
        assert errors["t99"] == ErrorCode.leader_not_available
        assert tried == names[: len(tried)]
        assert len(tried) < 10

    Simulation(0).run(scenario())


def test_a_request_for_no_keys_of_a_configuration_returns_all() -> None:
    async def scenario() -> None:
        handlers = Handlers({"a": 1})
        found = []
        for keys in (None, [], ["retention.ms"]):
            resource = {"resource_type": TOPIC, "resource_name": "a", "configuration_keys": keys}
            fields = {"resources": [resource], "include_synonyms": False}
            asked = request(ApiKey.DESCRIBE_CONFIGS, 4, {**fields, "include_documentation": False})
            result = (await read(asked, handlers.configs(asked))).results[0]
            found.append(len(result.configs))
        assert found[0] == found[1] > found[2] == 1

    asyncio.run(scenario())


def test_while_a_leader_is_suspected_no_cached_reply_is_sent() -> None:
    async def scenario() -> None:
        handlers = Handlers({"a": 1})
        asked = metadata()
        await body_of(handlers.metadata(asked))
        handlers.suspected_brokers.holder = handlers.holder
        assert [t.name for t in (await read(asked, handlers.metadata(asked))).topics] == ["elected"]

    asyncio.run(scenario())


def test_a_refusal_is_noted_however_often_the_same_request_is_sent() -> None:
    noted: list[str] = []
    authorizer = Authorizer()
    authorizer.on_refusal = lambda _request, _operation, _kind, name, _reason: noted.append(name)

    async def scenario() -> None:
        handlers = Handlers({"a": 1})
        for _ in range(3):
            for asked, handler in (
                (metadata(["a"]), handlers.metadata),
                (configs([(TOPIC, "a")]), handlers.configs),
            ):
                asked.authorizer = authorizer
                await body_of(handler(asked))

    asyncio.run(scenario())
    assert noted == ["a"] * 6


def test_the_cache_is_bounded_and_evicts_the_least_recently_used_reply() -> None:
    image = image_of({})

    def steps(body: bytes) -> Steps:
        yield 1
        return body

    async def scenario() -> None:
        replies, asked = ImageReplies(bytes_max=10_000), metadata()
        keys = [(1, "IN", b"%d" % n) for n in range(10)]
        for key in keys:
            replies.build(asked, key, image, steps(bytes(2_000)))
            assert replies.cached(keys[0], image) is not None
            assert replies._cached_bytes <= 10_000
        assert [key for key in keys if replies.cached(key, image)] == [keys[0], *keys[-3:]]
        replies.build(asked, keys[1], image, steps(bytes(20_000)))
        assert replies.cached(keys[1], image) is None
        replies.build(asked, None, image, steps(b"of a very long request"))
        replies.build(asked, keys[1], image_of({}), steps(b""))
        assert replies._cached_bytes < 1_000

    asyncio.run(scenario())


# -- slices --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "partitions", [{"wide": 10_000}, {f"t{n}": 1 for n in range(3_000)}], ids=["wide", "many"]
)
def test_metadata_of_many_partitions_yields_to_the_loop_after_each_slice(
    partitions: dict[str, int],
) -> None:
    async def scenario() -> None:
        handlers = Handlers(partitions)
        asked = metadata()
        answer = handlers.metadata(asked)
        assert isinstance(answer, Exclusive)
        making = asyncio.ensure_future(body_of(answer))
        pauses = 0
        while not making.done():
            await asyncio.sleep(0)
            pauses += 1
        assert pauses >= sum(partitions.values()) // SLICE_UNITS
        answered = read_response(ApiKey.METADATA, 12, making.result())
        assert {t.name: len(t.partitions) for t in answered.topics} == partitions
        assert [p.partition_index for p in answered.topics[0].partitions] == list(
            range(partitions[answered.topics[0].name])
        )
        assert await body_of(handlers.metadata(asked)) is making.result()

    asyncio.run(scenario())


def test_configs_of_many_topics_yield_to_the_loop_after_each_slice() -> None:
    async def scenario() -> None:
        names = [f"t{n}" for n in range(200)]
        handlers = Handlers(dict.fromkeys(names, 1))
        asked = configs((TOPIC, name) for name in names)
        making = asyncio.ensure_future(body_of(handlers.configs(asked)))
        pauses = 0
        while not making.done():
            await asyncio.sleep(0)
            pauses += 1
        assert pauses >= 10
        answered = read_response(ApiKey.DESCRIBE_CONFIGS, 4, making.result())
        assert [r.resource_name for r in answered.results] == names
        assert all(len(r.configs) > 20 for r in answered.results)

    asyncio.run(scenario())


def test_a_reply_is_built_from_the_image_it_was_started_with() -> None:
    async def scenario() -> None:
        handlers = Handlers({"wide": 5_000})
        asked = metadata()
        making = asyncio.ensure_future(body_of(handlers.metadata(asked)))
        await asyncio.sleep(0)
        handlers.holder.image = image_of({"other": 1})
        assert [t.name for t in (await read(asked, handlers.metadata(asked))).topics] == ["other"]
        answered = read_response(ApiKey.METADATA, 12, await making)
        assert [(t.name, len(t.partitions)) for t in answered.topics] == [("wide", 5_000)]
        assert [t.name for t in (await read(asked, handlers.metadata(asked))).topics] == ["other"]

    asyncio.run(scenario())


def test_concurrent_equal_requests_build_the_reply_once_and_one_reply_at_a_time() -> None:
    image = image_of({})
    slices: list[str] = []

    def steps(name: str) -> Steps:
        for _ in range(4):
            slices.append(name)
            yield SLICE_UNITS
        return name.encode()

    async def scenario() -> None:
        replies, asked = ImageReplies(), metadata()
        same, other = (1, "IN", b"same"), (1, "IN", b"other")
        first = asyncio.ensure_future(body_of(replies.build(asked, same, image, steps("same"))))
        await asyncio.sleep(0)
        others = [replies.build(asked, same, image, steps("same")) for _ in range(5)]
        others.append(replies.build(asked, other, image, steps("other")))
        bodies = await asyncio.gather(first, *map(body_of, others))
        assert bodies == [b"same"] * 6 + [b"other"]
        assert slices.count("same") == 4
        assert slices[-3:] == ["other"] * 3, "the loop runs one slice of one reply at a time"

    asyncio.run(scenario())


def test_a_client_that_disconnects_while_a_reply_is_built_does_not_affect_the_others() -> None:
    async def scenario() -> None:
        handlers = Handlers({"wide": 5_000})
        first = asyncio.ensure_future(body_of(handlers.metadata(metadata())))
        await asyncio.sleep(0)
        second = asyncio.ensure_future(body_of(handlers.metadata(metadata())))
        await asyncio.sleep(0)
        first.cancel()
        answered = read_response(ApiKey.METADATA, 12, await second)
        assert len(answered.topics[0].partitions) == 5_000

    asyncio.run(scenario())


@given(
    st.dictionaries(st.sampled_from("abcdefgh"), st.integers(1, 450), max_size=8),
    st.lists(st.sampled_from("abcdefghij"), max_size=6),
    st.integers(APIS[ApiKey.METADATA].min_version, APIS[ApiKey.METADATA].max_version),
)
def test_each_requested_topic_is_described_once_and_completely(
    partitions: dict[str, int], names: list[str], version: int
) -> None:
    async def scenario() -> None:
        handlers = Handlers(partitions)
        asked = metadata(names or None, version)
        if version < 4:
            partitions.update({name: 1 for name in names if name not in partitions})
        answered = await read(asked, handlers.metadata(asked))
        expected = list(dict.fromkeys(names)) if names else list(partitions)
        assert [t.name for t in answered.topics] == expected
        for topic in answered.topics:
            assert topic.error_code == (0 if topic.name in partitions else 3)
            found = [(p.partition_index, p.leader_id, p.isr_nodes) for p in topic.partitions]
            assert found == [(n, 1, NODES[:2]) for n in range(partitions.get(topic.name, 0))]
        assert [b.node_id for b in answered.brokers] == list(NODES)

    asyncio.run(scenario())

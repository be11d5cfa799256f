"""Access rules that change while clients run, and a client that they sometimes refuse.

There are no rules, which allows everybody everything, or one rule for everybody and beside it some
that deny the intruder something, whom its machine tells from all others. Rules that deny are only
created together with the one for everybody, and that is only deleted together with all others: so
only the intruder is ever refused, in whatever order changes are applied.
Invariant: while a broker has the same rules from before a request of the intruder until after the
answer, the answer is what these rules say. What was refused is not stored.
"""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from simulation.workload_context import TOPIC, WorkloadContext
from suwi.client.acls import Acls
from suwi.client.connection import PeerConnection
from suwi.env import Env
from suwi.lab.requests import produce_records
from suwi.model.errors import BrokerError
from suwi.model.ids import NodeId, TopicPartition
from suwi.records.record import Record
from suwi.security.acls import (
    WILDCARD,
    AclBinding,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from suwi.security.authorizer import AclIndex
from suwi.security.principal import ANONYMOUS
from suwi.sim.cluster import PORT, SimNode
from suwi.sim.incarnation import Incarnation
from suwi.sim.random import SimRandom
from suwi.wire.fetch_request import FetchPartition, FetchRequest, FetchTopic, encode_fetch_request
from suwi.wire.fetch_response import FetchedPartition, decode_fetch_response
from suwi.wire.versions import ApiKey

INTRUDER = "c3"
"""Its machine: as hosts, rules name machines."""
_REFUSED = ErrorCode.topic_authorization_failed
_FETCH_VERSION = 12
_ANSWER_S = 4.0
_WAIT_MS = 1500
_MUCH_BYTES = 100_000
"""More than there is to read: such a fetch waits."""
_PATTERNS = (
    (PatternType.LITERAL, TOPIC),
    (PatternType.LITERAL, WILDCARD),
    (PatternType.PREFIXED, TOPIC[:3]),
)
_FOR_EVERYBODY = AclBinding(
    ResourceType.TOPIC,
    PatternType.LITERAL,
    WILDCARD,
    "User:*",
    WILDCARD,
    Operation.ALL,
    Permission.ALLOW,
)
_OTHERS_MAX = 30


async def change_rules(workload: WorkloadContext, _env: Env, random: SimRandom) -> None:
    client = workload.client("rules")
    acls = Acls(client)
    pause_s_max = random.choice((0.3, 1.0, 3.0))
    while not await workload.stopped_within(random.uniform(0, pause_s_max)):
        with suppress(BrokerError, OSError):
            draw = random.random()
            if draw < 0.5:
                await acls.create([_FOR_EVERYBODY, _rule_against_the_intruder(random)])
            elif draw < 0.6:
                others = range(random.between(1, _OTHERS_MAX))
                await acls.create([_FOR_EVERYBODY, *map(_rule_for_another, others)])
            elif draw < 0.85:
                await acls.delete([AclFilter(permission=Permission.DENY)])
            else:
                await acls.delete([AclFilter()])
    await client.close()


def _rule_against_the_intruder(random: SimRandom) -> AclBinding:
    return AclBinding(
        ResourceType.TOPIC,
        *random.choice(_PATTERNS),
        "User:*",
        INTRUDER,
        random.choice((Operation.READ, Operation.WRITE, Operation.ALL)),
        Permission.DENY,
    )


def _rule_for_another(number: int) -> AclBinding:
    return _FOR_EVERYBODY._replace(principal=f"User:other {number}", name=TOPIC)


class _Ruled(NamedTuple):
    """The process of a broker, and the rules that it has."""

    process: Incarnation
    rules: AclIndex

    def allow(self, operation: Operation) -> bool:
        found = self.rules.decide(str(ANONYMOUS), INTRUDER, operation, ResourceType.TOPIC, TOPIC)
        return found is None or found.is_allowed


class Intruder:
    def __init__(
        self,
        workload: WorkloadContext,
        nodes: Mapping[NodeId, SimNode],
        env: Env,
        random: SimRandom,
    ) -> None:
        self._workload = workload
        self._nodes = nodes
        self._env = env
        self._random = random
        self._connections: dict[NodeId, PeerConnection] = {}
        """Kept: a connection remembers what its client may do."""
        self._number = 0

    async def run(self) -> None:
        """Raises AssertionError if an answer is not what the rules say."""
        while not await self._workload.stopped_within(self._random.uniform(0, 0.4)):
            partition = self._random.choice(self._workload.partitions)
            node = self._leader_or_any(partition)
            with suppress(OSError, TimeoutError):
                if self._random.chance(0.5):
                    await self._write(node, partition)
                else:
                    await self._read(node, partition)
        for connection in self._connections.values():
            connection.abort()

    def _leader_or_any(self, partition: TopicPartition) -> SimNode:
        any_node = self._random.choice(list(self._nodes.values()))
        if any_node.broker is not None and self._random.chance(0.8):
            topic = any_node.broker.replicas.image.topics.get(partition.topic)
            if topic is not None and partition.partition < len(topic.partitions):
                leader = topic.partitions[partition.partition].leader
                return self._nodes.get(leader, any_node)
        return any_node

    async def _connection(self, node: SimNode) -> PeerConnection:
        connection = self._connections.get(node.id)
        if connection is None or not connection.is_open:
            connection = await PeerConnection.open(node.name, PORT, client_id="intruder")
            self._connections[node.id] = connection
        return connection

    async def _write(self, node: SimNode, partition: TopicPartition) -> None:
        value = f"intruder:{self._number}".encode()
        self._number += 1
        write = self._workload.history.send("intruder", str(partition), value)
        records = [Record(value=value, timestamp=self._env.clock.now_ms())]
        connection, before = await self._connection(node), _ruled(node)
        try:
            async with asyncio.timeout(_ANSWER_S):
                answer = await produce_records(
                    connection, partition.topic, records, partition=partition.partition
                )
        except (OSError, TimeoutError):
            connection.abort()
            raise
        if answer.error_code == ErrorCode.none:
            write.acked(answer.base_offset)
        elif answer.error_code == _REFUSED:
            write.refused()
        _check(node, before, Operation.WRITE, answer.error_code, answer.error_code == 0)

    async def _read(self, node: SimNode, partition: TopicPartition) -> None:
        connection, before = await self._connection(node), _ruled(node)
        min_bytes = self._random.choice((1, _MUCH_BYTES))
        try:
            async with asyncio.timeout(_ANSWER_S):
                fetched = await _fetch(connection, partition, min_bytes)
        except (OSError, TimeoutError):
            connection.abort()
            raise
        if fetched is not None:
            _check(node, before, Operation.READ, fetched.error_code, bool(fetched.records))


async def _fetch(
    connection: PeerConnection, partition: TopicPartition, min_bytes: int
) -> FetchedPartition | None:
    """None if a quota throttles the client."""
    asked = FetchPartition(
        partition=partition.partition,
        current_leader_epoch=-1,
        fetch_offset=0,
        last_fetched_epoch=-1,
        log_start_offset=-1,
        max_bytes=1 << 20,
    )
    topics = [FetchTopic(partition.topic, None, [asked])]
    request = FetchRequest(_WAIT_MS, min_bytes, 1 << 20, topics)
    answer = decode_fetch_response(
        _FETCH_VERSION,
        await connection.send(
            ApiKey.FETCH, _FETCH_VERSION, [encode_fetch_request(_FETCH_VERSION, request)]
        ),
    )
    return answer.topics[0].partitions[0] if answer.topics else None


def _ruled(node: SimNode) -> _Ruled | None:
    if node.broker is None or not node.is_running:
        return None
    return _Ruled(node.machine.incarnation, node.broker._follower.image.acls)


def _check(
    node: SimNode, before: _Ruled | None, operation: Operation, code: int, is_done: bool
) -> None:
    if before is None or _ruled(node) != before:
        return  # The rules changed meanwhile: either answer is right.
    what = f"{operation.name} of {TOPIC} by {INTRUDER} at {node.name}"
    is_allowed = before.allow(operation)
    assert is_allowed or not is_done, f"{what} was answered though a rule denies it"
    assert not is_allowed or code != _REFUSED, f"{what} was refused though no rule denies it"

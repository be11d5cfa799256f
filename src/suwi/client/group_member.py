"""A member of a consumer group, classic protocol: join, sync, heartbeat, leave.

`join` goes through whole rebalances until there is an assignment; heartbeats follow by themselves.
What the coordinator says about our place ends in `must_join`, `is_lost` and `fatal`, and `on_news`
is called: `group_consumer.py` acts on it.
Invariant: `membership` has a generation exactly while the member may commit in it.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

from kio.schema.errors import ErrorCode

from suwi.client.assignors import ASSIGNORS
from suwi.client.cluster import Cluster
from suwi.client.coordinator import Coordinator
from suwi.client.errors import is_transient
from suwi.client.fetching import ReadSettings
from suwi.client.group_offsets import Membership
from suwi.client.retry import Retry
from suwi.model.errors import BrokerError
from suwi.model.ids import TopicPartition
from suwi.wire.consumer_protocol import (
    NO_GENERATION,
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from suwi.wire.errors import MalformedResponse
from suwi.wire.versions import ApiKey

OffsetReset: TypeAlias = Literal["earliest", "latest", "none"]

_PROTOCOL_TYPE = "consumer"
_REPLY_S = 5
"""How long an answer may take beyond what it waits for."""
_GONE = (ErrorCode.illegal_generation, ErrorCode.unknown_member_id)
_JOIN_AGAIN = (*_GONE, ErrorCode.rebalance_in_progress)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    assignors: tuple[str, ...] = ("range", "cooperative-sticky")
    """The first that all members have is used. With any that is not cooperative, everything is
    given up before each rebalance."""
    instance_id: str | None = None
    """With one the member is static: it may come back within its session and keep its place."""
    session_timeout_s: float = 45
    rebalance_timeout_s: float = 300
    heartbeat_s: float = 3
    offset_reset: OffsetReset = "latest"
    """Where to begin without a committed offset; `none` is an error."""
    topic_check_s: float = 30
    """How often the group's leader looks for new partitions."""
    read: ReadSettings = field(default_factory=ReadSettings)


class Joined(NamedTuple):
    generation: int
    assignment: tuple[TopicPartition, ...]


class GroupMember:
    def __init__(
        self,
        cluster: Cluster,
        coordinator: Coordinator,
        topics: Iterable[str],
        settings: GroupSettings,
        on_news: Callable[[], None],
    ) -> None:
        self.membership = Membership(instance_id=settings.instance_id)
        self.must_join = True
        self.is_lost = False
        """The group went on without us: nothing is owned any more."""
        self.fatal: BrokerError | None = None
        self._cluster = cluster
        self._coordinator = coordinator
        self._topics = tuple(dict.fromkeys(topics))
        self._settings = settings
        self._on_news = on_news
        self._assignors = [ASSIGNORS[name] for name in settings.assignors]
        self.is_cooperative = all(assignor.is_cooperative for assignor in self._assignors)
        self._counts: dict[str, int] | None = None
        """As the leader: how many partitions the topics of all members had."""

    @property
    def has_generation(self) -> bool:
        return self.membership.generation != NO_GENERATION

    def subscribe(self, topics: Iterable[str]) -> None:
        self._topics = tuple(dict.fromkeys(topics))
        self.rejoin()

    def rejoin(self) -> None:
        self.must_join = True
        self._on_news()

    def heed(self, error: BrokerError) -> None:
        """What an error says about our place in the group."""
        if error.code is ErrorCode.fenced_instance_id:
            self.fatal, self.is_lost = error, True
        elif error.code in _GONE:
            is_known = error.code is ErrorCode.illegal_generation
            member_id = self.membership.member_id if is_known else ""
            self.membership = Membership(member_id, NO_GENERATION, self._settings.instance_id)
            self.is_lost = self.must_join = True
        elif error.code is ErrorCode.rebalance_in_progress:
            self.must_join = True
        self._on_news()

    # -- joining ---------------------------------------------------------------------------------

    async def join(self, owned: Sequence[TopicPartition]) -> Joined:
        """Raises what another attempt does not mend, and OSError when patience ends."""
        retry = Retry(self._cluster.settings, self._cluster.random)
        while True:
            self.must_join = False
            try:
                joined = await self._join_once(owned)
                self.membership = self.membership._replace(generation=joined.generation)
                return joined
            except (BrokerError, OSError, MalformedResponse) as error:
                if isinstance(error, BrokerError):
                    self.heed(error)
                    owned = () if self.is_lost else owned
                    may_pass = error.code in _JOIN_AGAIN or is_transient(error)
                    if self.fatal is not None or not may_pass:
                        raise
                await retry.pause_or_raise(error)

    async def _join_once(self, owned: Sequence[TopicPartition]) -> Joined:
        generation = self.membership.generation if owned else NO_GENERATION
        rack = self._settings.read.rack or None
        wants = encode_subscription(Subscription(self._topics, tuple(owned), generation, rack))
        answer = await self._call(ApiKey.JOIN_GROUP, self._join_fields(wants))
        if answer.error_code is ErrorCode.member_id_required:
            self.membership = self.membership._replace(member_id=answer.member_id)
            answer = await self._call(ApiKey.JOIN_GROUP, self._join_fields(wants))
        if answer.error_code:
            raise self._coordinator.refused(answer.error_code)
        self.membership = self.membership._replace(member_id=answer.member_id)
        assignments: dict[str, bytes] = {}
        self._counts = None
        if answer.leader == answer.member_id:
            subscriptions = _subscriptions(answer.members)
            self._counts = counts = await self._count_partitions(_topics_of(subscriptions))
            # KIP-814: a static leader that is back finds an assignment, and looks after the topics.
            if not getattr(answer, "skip_assignment", False):
                assigned = ASSIGNORS[answer.protocol_name].assign(subscriptions, counts)
                assignments = {each: encode_assignment(to_it) for each, to_it in assigned.items()}
        synced = await self._call(ApiKey.SYNC_GROUP, self._sync_fields(answer, assignments))
        if synced.error_code:
            raise self._coordinator.refused(synced.error_code)
        return Joined(answer.generation_id, decode_assignment(bytes(synced.assignment)).partitions)

    async def _call(self, api: ApiKey, fields: Mapping[str, Any]) -> Any:
        """A request that is answered when the other members have sent theirs."""
        timeout_s = self._settings.rebalance_timeout_s + _REPLY_S
        return await self._coordinator.call(api, fields, timeout_s=timeout_s)

    async def _count_partitions(self, topics: Sequence[str]) -> dict[str, int]:
        """A topic that does not exist has none."""
        errors = await self._cluster.refresh(topics)
        return {
            topic: 0 if topic in errors else len((await self._cluster.topic(topic)).partitions)
            for topic in topics
        }

    # -- afterwards ------------------------------------------------------------------------------

    async def beat(self) -> None:
        """Heartbeats while there is a generation, also when it is about to join again."""
        loop = asyncio.get_running_loop()
        checked_s = loop.time()
        while self.has_generation and self.fatal is None:
            await asyncio.sleep(self._settings.heartbeat_s)
            try:
                answer = await self._coordinator.call(
                    ApiKey.HEARTBEAT,
                    {**self._fields(), "generation_id": self.membership.generation},
                    timeout_s=self._settings.session_timeout_s / 2,
                )
                if answer.error_code:
                    raise self._coordinator.refused(answer.error_code)
                if loop.time() - checked_s >= self._settings.topic_check_s:
                    checked_s = loop.time()
                    await self._check_topics()
            except BrokerError as error:
                self.heed(error)
            except (OSError, MalformedResponse):
                pass  # The next one looks for the coordinator again.

    async def _check_topics(self) -> None:
        if self._counts is None:
            return
        if await self._count_partitions(list(self._counts)) != self._counts:
            self.rejoin()

    async def leave(self) -> None:
        """Whatever fails: the session will end."""
        if not self.membership.member_id or self.fatal is not None:
            return
        member_id, _, instance_id = self.membership
        member = {"member_id": member_id, "group_instance_id": instance_id, "reason": "closed"}
        fields = {
            "group_id": self._coordinator.key,
            "member_id": member_id,
            "members": [member],
        }
        try:
            await self._coordinator.call(ApiKey.LEAVE_GROUP, fields, timeout_s=_REPLY_S)
        except (BrokerError, OSError, MalformedResponse):
            pass

    # -- fields ----------------------------------------------------------------------------------

    def _fields(self) -> dict[str, Any]:
        return {
            "group_id": self._coordinator.key,
            "member_id": self.membership.member_id,
            "group_instance_id": self.membership.instance_id,
        }

    def _join_fields(self, subscription: bytes) -> dict[str, Any]:
        return {
            **self._fields(),
            "session_timeout": int(self._settings.session_timeout_s * 1000),
            "rebalance_timeout": int(self._settings.rebalance_timeout_s * 1000),
            "protocol_type": _PROTOCOL_TYPE,
            "protocols": [
                {"name": assignor.name, "metadata": subscription} for assignor in self._assignors
            ],
            "reason": None,
        }

    def _sync_fields(self, joined: Any, assignments: Mapping[str, bytes]) -> dict[str, Any]:
        return {
            **self._fields(),
            "generation_id": joined.generation_id,
            "protocol_type": _PROTOCOL_TYPE,
            "protocol_name": joined.protocol_name,
            "assignments": [
                {"member_id": member_id, "assignment": assignment}
                for member_id, assignment in assignments.items()
            ],
        }


def _subscriptions(members: Iterable[Any]) -> dict[str, Subscription]:
    """By member id, static members first."""

    def by_name(member: Any) -> tuple[bool, str]:
        instance_id = getattr(member, "group_instance_id", None)
        return instance_id is None, instance_id or member.member_id

    return {
        member.member_id: decode_subscription(bytes(member.metadata))
        for member in sorted(members, key=by_name)
    }


def _topics_of(subscriptions: Mapping[str, Subscription]) -> list[str]:
    return sorted({topic for wants in subscriptions.values() for topic in wants.topics})

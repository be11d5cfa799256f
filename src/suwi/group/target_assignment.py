"""From members and topics to a target assignment.

`Job` is work that may take longer than one turn of the loop: the coordinator begins it, and the
runtime steps it if the coordinator has handed it out. It works on what was known when it began;
members and images are values that do not change.
"""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Final

from suwi.coordinator.topics import Topic, Topics
from suwi.env.slices import Pace, Slices
from suwi.group.assignors import ASSIGNORS, Assignment, GroupSpec, MemberSpec
from suwi.group.consumer_group import ConsumerGroupMember, Target
from suwi.group.consumer_group_records import ConsumerGroupRegularExpressionValue
from suwi.model.ids import TopicId

_SIGN: Final = 1 << 63
_MODULUS: Final = 1 << 64


class Job:
    """Work in slices. `step` until it says that it is done, then `result`."""

    __slots__ = ("_steps", "group_id", "instances", "is_done", "result", "version")

    def __init__(
        self,
        group_id: str,
        version: int,
        steps: Slices[Any],
        instances: Mapping[str, str] | None = None,
    ) -> None:
        """`version`: the group epoch of an assignment, the image of regular expressions.
        `instances`: who was which static member when it began."""
        self.group_id = group_id
        self.version = version
        self.instances = instances or {}
        self.is_done = False
        self.result: Any = None
        self._steps = steps

    def step(self) -> bool:
        """Whether it is done."""
        if not self.is_done:
            try:
                next(self._steps)
            except StopIteration as end:
                self.result, self.is_done = end.value, True
        return self.is_done

    def running(self) -> Slices[None]:
        """All of it, in slices of the event that needs it."""
        while not self.step():
            yield


@lru_cache(maxsize=65_536)
def _topic_hash(topic: Topic) -> int:
    text = f"{topic.topic_id.hex}:{topic.partitions}:{topic.name}"
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest())


def metadata_hash(names: Iterable[str], topics: Topics) -> Slices[int]:
    """Differs if one of these topics was created, deleted, made anew or given partitions.

    0 if there is none of them. In whichever order they come.
    """
    pace, value = Pace(), 0
    for name in frozenset(names):
        topic = topics.by_name(name)
        if topic is not None:
            value += _topic_hash(topic)
        if pace.is_over(3):
            yield
    value %= _MODULUS
    return value - _MODULUS if value >= _SIGN else value


def topic_ids(names: Iterable[str], topics: Topics) -> Slices[frozenset[TopicId]]:
    pace, found = Pace(), set()
    for name in names:
        topic = topics.by_name(name)
        if topic is not None:
            found.add(topic.topic_id)
        if pace.is_over(2):
            yield
    return frozenset(found)


def assign(
    assignor: str,
    members: Mapping[str, ConsumerGroupMember],
    targets: Mapping[str, Target],
    regexes: Mapping[str, ConsumerGroupRegularExpressionValue],
    topics: Topics,
) -> Slices[Assignment]:
    known: dict[tuple[tuple[str, ...], str | None], frozenset[TopicId]] = {}
    specs: dict[str, MemberSpec] = {}
    pace = Pace()
    for member in members.values():
        names, regex = subscription = (member.topic_names, member.topic_regex)
        ids = known.get(subscription)
        if ids is None:
            resolved = regexes.get(regex or "")
            matched = resolved.topics if resolved is not None else ()
            ids = known[subscription] = yield from topic_ids((*names, *matched), topics)
        specs[member.member_id] = MemberSpec(
            member.instance_id, ids, targets.get(member.member_id, {})
        )
        if pace.is_over(3):
            yield
    partitions: dict[TopicId, int] = {}
    for ids in known.values():
        for topic_id in ids:
            topic = topics.by_id(topic_id)
            partitions[topic_id] = topic.partitions if topic is not None else 0
            if pace.is_over(2):
                yield
    return (yield from ASSIGNORS[assignor](GroupSpec(specs, partitions)))

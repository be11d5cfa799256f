"""What happened to topics, to say why a classic group rebalanced.

Members of a classic group notice for themselves that a topic has more partitions, or is gone: their
leader joins again, and does not say why. The coordinator knows of the change, too.
"""

import dataclasses
from collections import OrderedDict
from collections.abc import Iterable
from typing import Final, NamedTuple

from suwi.group.history import Cause, Trigger
from suwi.metadata.image import ClusterImage

_TOPICS_MAX: Final = 10_000
_UNSAID: Final = (Trigger.LEADER_REJOINED, Trigger.MEMBER_REJOINED)


class _Change(NamedTuple):
    trigger: Trigger
    at_ms: int


class TopicChanges:
    def __init__(self) -> None:
        self._by_topic: OrderedDict[str, _Change] = OrderedDict()
        """The last of each topic, the oldest first."""

    def apply_image(self, old: ClusterImage, new: ClusterImage, now_ms: int) -> None:
        for name, before in old.topics.items():
            after = new.topics.get(name)
            if after is before:
                continue
            if after is None or after.id != before.id:
                self._add(name, _Change(Trigger.TOPIC_DELETED, now_ms))
            elif len(after.partitions) > len(before.partitions):
                self._add(name, _Change(Trigger.NEW_PARTITIONS, now_ms))

    def _add(self, topic: str, change: _Change) -> None:
        self._by_topic[topic] = change
        self._by_topic.move_to_end(topic)
        if len(self._by_topic) > _TOPICS_MAX:
            self._by_topic.popitem(last=False)

    def explain(self, cause: Cause, topics: Iterable[str], since_ms: int) -> Cause:
        """The cause of a rebalance of a group that reads these topics and had rebalanced last at
        `since_ms`, if a topic has changed since."""
        if cause.trigger not in _UNSAID:
            return cause
        for topic in topics:
            change = self._by_topic.get(topic)
            if change is not None and change.at_ms >= since_ms:
                reason = cause.reason or f"topic {topic}"
                return dataclasses.replace(cause, trigger=change.trigger, reason=reason)
        return cause

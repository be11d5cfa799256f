"""WatchPartition v0, Suwi's own and never advertised: what happens in one partition, as it happens.

Request and response are JSON: `{"topic": "a", "partition": 0, "after": 0, "history_after": 0}` and
`{"state": {…}, "waiting": […], "events": […], "last": 17, "is_complete": true, "history": […],
"history_last": 3, "controller": [9, 1], "metadata": 85}`: the replica on this broker, null if it
has none; the producers that wait for answers; fetches, produces and truncations after the event of
the given number (`replica/partition_watch.py`); elections and changes of the in-sync set after that
of the other number; the epoch and the id of the controller, the latter null between two of them;
the number of the newest change of metadata that this broker knows.
The request takes a watch of the partition, or renews it: without one for 5 s fetches and produces
are noted no longer.
"""

import asyncio
from itertools import chain, islice
from typing import Any, Final

from suwi.env import Clock
from suwi.handlers.json_body import json_reply, long_json_reply, read_json
from suwi.metadata.partition_history import PartitionEvent, PartitionHistory
from suwi.model.errors import BrokerError
from suwi.model.ids import NodeId, PartitionIndex, TopicPartition
from suwi.net.answers import Answer, CloseConnection, Exclusive
from suwi.net.dispatch import Request
from suwi.replica.description import describe
from suwi.replica.partition import Partition
from suwi.replica.replica_manager import ReplicaManager

_SEGMENTS_MAX: Final = 20
_PRODUCERS_MAX: Final = 8
_FEW: Final = 50
"""Fewer events are encoded at once, without a task."""


class WatchPartition:
    def __init__(
        self, replicas: ReplicaManager, history: PartitionHistory, node_id: NodeId, clock: Clock
    ) -> None:
        self._replicas = replicas
        self._history = history
        self._node_id = node_id
        self._clock = clock

    def __call__(self, request: Request) -> Answer:
        asked = read_json(request)
        topic, index = asked.get("topic"), asked.get("partition", 0)
        after, history_after = asked.get("after", 0), asked.get("history_after", 0)
        numbers = (index, after, history_after)
        if not isinstance(topic, str) or any(type(number) is not int for number in numbers):
            raise CloseConnection("WatchPartition: topic must be a string, the rest numbers")
        found = next(iter(self._replicas.of_topic(topic, index)), None)
        partition = None if found is None or found.is_closed else found
        watches = self._replicas.watches
        if partition is not None:
            try:
                watches.renew(partition)
            except BrokerError as error:
                return json_reply({"error_code": error.code.value, "error_message": error.message})
        watch = None if partition is None else partition.watched_by
        tp = TopicPartition(topic, PartitionIndex(index))
        events, last, is_complete = watches.read(tp, after)
        now_ms, image = self._clock.now_ms(), self._replicas.image
        history = self._history.since(history_after, topic, index)
        told = {
            "state": None if partition is None else self._state(partition),
            "waiting": [] if watch is None else watch.waiting(),
            "last": last,
            "is_complete": is_complete,
            "history_last": self._history.last_number,
            "controller": (image.controller_epoch, image.controller),
            "metadata": image.sequence,
        }
        changes = (_fields(event, now_ms) for event in history)
        first = list(islice(events, _FEW))
        if len(first) < _FEW and len(history) < _FEW:
            return json_reply({**told, "events": first, "history": [*changes]})
        # In slices: who has not asked before is told some thousands of both.
        arrays = {"events": chain(first, events), "history": changes}
        return Exclusive(long_json_reply(arrays, **told))

    def _state(self, partition: Partition) -> dict[str, Any]:
        now_s = asyncio.get_running_loop().time()
        state = describe(partition, self._node_id, now_s).as_json()
        if partition.leader_state is not None:
            state["partition_epoch"] = partition.leader_state.partition_epoch
        if partition.is_open:
            log = partition.log_as_it_is
            state["segments"] = [each.base_offset for each in log.segments()][-_SEGMENTS_MAX:]
            state["producers"] = [
                (each.producer_id, each.epoch, each.last_sequence, each.txn_first_offset)
                for each in log.producers.last(_PRODUCERS_MAX)
            ]
        return state


def _fields(event: PartitionEvent, now_ms: int) -> dict[str, Any]:
    return {
        "ago_ms": max(0, now_ms - event.at_ms),
        "leader": event.leader,
        "epoch": event.leader_epoch,
        "partition_epoch": event.partition_epoch,
        "isr": event.isr,
        "election": event.election,
    }

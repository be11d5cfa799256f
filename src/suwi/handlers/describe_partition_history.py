"""DescribePartitionHistory v0, Suwi's own and never advertised: in-sync sets and leaders over time.

Request and response are JSON: `{"topic": "a", "events_max": 10}`, both optional, and
`{"complete_from_ms": …, "missing": […], "missing_left_off": 0, "events": […]}`: the replicas that
are not in sync, since when and why, and the newest events, the newest first. Every broker answers,
as far back as its own memory goes.
"""

from itertools import islice
from typing import Any, Final

from suwi.handlers.json_body import json_reply, read_json
from suwi.metadata.partition_history import PartitionEvent, PartitionHistory
from suwi.net.answers import Answer, CloseConnection
from suwi.net.dispatch import Request

# What is made of them at once takes a few milliseconds.
_EVENTS_MAX: Final = 200
_MISSING_MAX: Final = 500


def describe_partition_history(history: PartitionHistory, request: Request) -> Answer:
    asked = read_json(request)
    topic, events_max = asked.get("topic"), asked.get("events_max", 0)
    if not (topic is None or isinstance(topic, str)) or type(events_max) is not int:
        raise CloseConnection(
            "DescribePartitionHistory: topic must be a string, events_max a number"
        )
    missing = [
        {"topic": name, "partition": index, "node": node, **found._asdict()}
        for name, index, node, found in islice(history.missing(topic), _MISSING_MAX)
    ]
    events_max = max(0, min(events_max, _EVENTS_MAX))
    told = {
        "complete_from_ms": history.complete_from_ms,
        "missing": missing,
        "missing_left_off": history.count_missing(topic) - len(missing),
        "events": [_fields(one) for one in islice(history.newest(topic), events_max)],
    }
    return json_reply(told)


def _fields(event: PartitionEvent) -> dict[str, Any]:
    fields = event._asdict()
    del fields["topic_id"], fields["partition_epoch"]
    fields["left"] = [{"node": node, "reason": reason} for node, reason in event.left.items()]
    return fields

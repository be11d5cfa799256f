"""Cluster events, above all losses of records: the newest `EVENTS_KEPT` are kept in the store.

`operations` makes the store entries for new events, `events` reads those of an image.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from suwi.metadata.image import EVENTS, ClusterImage
from suwi.metadata.store import Delete, Operation, Put

EVENTS_KEPT = 200
UNCLEAN_ELECTION = "unclean election"
"""The elected leader was not in the ISR. `lost_at_least`: the committed records that it lacks,
according to the replicas that could be queried; None: `LOSS_UNKNOWN`."""
LOSS_UNKNOWN = "unknown until a former in-sync replica returns"
SUSPECT_ELECTION = "election after a power loss"
"""All in-sync replicas had a power loss: records above the recovery point may be lost."""
RECORDS_LOST = "records lost"
"""A replica truncated exactly these records, which its leader does not have. Those below
`committed_below` were committed; the others may have been."""


@dataclass(frozen=True, slots=True)
class Event:
    kind: str
    at_ms: int
    facts: Mapping[str, Any] = field(default_factory=dict)


def operations(image: ClusterImage, new: Sequence[Event]) -> list[Operation]:
    """The operations that add these events and delete the oldest ones."""
    numbers = sorted(image.events)
    first = numbers[-1] + 1 if numbers else 0
    writes: list[Operation] = [
        Put(_key(first + index), _encode(event)) for index, event in enumerate(new)
    ]
    surplus = len(numbers) + len(new) - EVENTS_KEPT
    writes += [Delete(_key(number)) for number in numbers[: max(0, surplus)]]
    return writes


def events(image: ClusterImage) -> list[Event]:
    """All events in the image, the oldest first."""
    return [_decode(image.events[number]) for number in sorted(image.events)]


def logged_facts(event: Event) -> dict[str, Any]:
    """The facts of an event for the log, where an unknown loss must not read as no loss."""
    facts = dict(event.facts)
    if facts.get("lost_at_least", ()) is None:
        facts["lost_at_least"] = LOSS_UNKNOWN
    return facts


def _key(number: int) -> str:
    return f"{EVENTS}{number}"


def _encode(event: Event) -> bytes:
    value = {"kind": event.kind, "at_ms": event.at_ms, "facts": event.facts}
    return json.dumps(value, separators=(",", ":")).encode()


def _decode(data: bytes) -> Event:
    value = json.loads(data)
    return Event(value["kind"], value["at_ms"], value["facts"])

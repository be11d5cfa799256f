"""DescribeBroker v0, Suwi's own and never advertised: the broker's id and broker epoch.

The response is JSON: `{"node": 1, "epoch": 17, "stopping": false}`. The epoch is -1 while the
broker is not registered; only brokers receive it.
"""

import json
from collections.abc import Callable
from typing import NamedTuple

from suwi.model.ids import NodeId
from suwi.net.answers import Answer, Reply
from suwi.net.dispatch import Request


class BrokerIncarnation(NamedTuple):
    node: NodeId
    epoch: int
    stopping: bool


class DescribeBroker:
    def __init__(self, incarnation: Callable[[], BrokerIncarnation]) -> None:
        self._incarnation = incarnation

    def __call__(self, request: Request) -> Answer:
        incarnation = self._incarnation()._asdict()
        if not request.client.is_peer:
            del incarnation["epoch"]
        return Reply([json.dumps(incarnation).encode()])


def decode_incarnation(body: bytes) -> BrokerIncarnation:
    """Raises ValueError."""
    try:
        return BrokerIncarnation(**json.loads(body))
    except TypeError as error:
        raise ValueError(str(error)) from error

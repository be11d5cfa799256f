"""DescribeBroker v0, Suwi's own and never advertised: the broker's id and broker epoch.

The response is JSON: `{"node": 1, "stopping": false, "directories": ["eJw..."], "epoch": 17}`, with
the ids of the data directories. The epoch is -1 while the broker is not registered; only brokers
receive it.
"""

import json
from collections.abc import Callable, Sequence
from typing import NamedTuple

from suwi.model.ids import NodeId
from suwi.net.answers import Answer, Reply
from suwi.net.dispatch import Request


class BrokerIncarnation(NamedTuple):
    node: NodeId
    stopping: bool
    directories: Sequence[str] = ()
    epoch: int = -1


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

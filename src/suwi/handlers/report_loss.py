"""ReportLoss v0, Suwi's own and never advertised: a replica had to give up committed records.

Request: `{"broker": 1, "partition": "orders-0", "ranges": [{"epoch": 3, "first": 7, "end": 9}]}`,
`end` being the first offset that is not lost. Response: `{"error": 0}`, Kafka's code.
"""

import json
from collections.abc import Sequence
from typing import Any

from kio.schema.errors import ErrorCode

from suwi.controller.office import Office
from suwi.handlers.errors import error_of
from suwi.model.errors import BrokerError
from suwi.model.ids import NodeId
from suwi.net.answers import Answer, CloseConnection, Exclusive, Reply
from suwi.net.dispatch import Request


class ReportLoss:
    def __init__(self, office: Office) -> None:
        self._office = office

    def __call__(self, request: Request) -> Answer:
        try:
            value = json.loads(bytes(request.body))
            node, partition, ranges = value["broker"], value["partition"], value["ranges"]
        except (ValueError, KeyError, TypeError) as error:
            raise CloseConnection(f"ReportLoss: {error}") from error
        return Exclusive(self._remember(NodeId(node), partition, ranges))

    async def _remember(self, node: NodeId, partition: str, ranges: Sequence[Any]) -> Reply:
        code = ErrorCode.none
        try:
            await self._office.partitions.report_loss(node, partition, ranges)
        except BrokerError as error:
            code, _ = error_of(error)
        return Reply([json.dumps({"error": int(code)}).encode()])

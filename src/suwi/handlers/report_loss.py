"""ReportLoss v0, Suwi's own, between brokers: a replica had to give up records that were
committed, or may have been.

Request: `{"broker": 1, "partition": "orders-0", "ranges": [{"epoch": 3, "first": 7, "end": 9}],
"committed_below": 8}`, `end` being the first offset that is not lost. What is below
`committed_below` was committed, the rest may have been. Response: `{"error": 0}`, Kafka's code.
"""

import json
from typing import Any

from kio.schema.errors import ErrorCode

from suwi.controller.controller_api import ControllerApi
from suwi.handlers.errors import error_of
from suwi.handlers.json_body import read_json
from suwi.model.errors import BrokerError
from suwi.net.answers import Answer, CloseConnection, Exclusive, Reply
from suwi.net.dispatch import Request

_FACTS = ("partition", "broker", "ranges", "committed_below")


class ReportLoss:
    def __init__(self, office: ControllerApi) -> None:
        self._office = office

    def __call__(self, request: Request) -> Answer:
        try:
            value = read_json(request)
            report = {key: value[key] for key in _FACTS}
        except KeyError as error:
            raise CloseConnection(f"ReportLoss: {error}") from error
        return Exclusive(self._remember(report))

    async def _remember(self, report: dict[str, Any]) -> Reply:
        code = ErrorCode.none
        try:
            await self._office.partitions.report_loss(report)
        except BrokerError as error:
            code, _ = error_of(error)
        return Reply([json.dumps({"error": int(code)}).encode()])

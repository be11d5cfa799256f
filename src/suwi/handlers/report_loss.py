"""ReportLoss v0, Suwi's own, between brokers: a replica lost records that were or may have been
committed.

Request: `{"broker": 1, "partition": "orders-0", "ranges": [{"epoch": 3, "first": 7, "end": 9}],
"committed_below": 8}`; `end` is exclusive. Records below `committed_below` were committed, the
others may have been. Response: `{"error": 0}`, a Kafka error code.
"""

from typing import Any

from kio.schema.errors import ErrorCode

from suwi.controller.controller_election import ControllerElection
from suwi.handlers.json_body import json_reply, read_json
from suwi.model.errors import BrokerError, error_of
from suwi.net.answers import Answer, CloseConnection, Exclusive, Reply
from suwi.net.dispatch import Request

_FIELDS = ("partition", "broker", "ranges", "committed_below")


def report_loss(controller: ControllerElection, request: Request) -> Answer:
    try:
        value = read_json(request)
        report = {key: value[key] for key in _FIELDS}
    except KeyError as error:
        raise CloseConnection(f"ReportLoss: {error}") from error
    return Exclusive(_record(controller, report))


async def _record(controller: ControllerElection, report: dict[str, Any]) -> Reply:
    code = ErrorCode.none
    try:
        await controller.active.partitions.report_loss(report)
    except BrokerError as error:
        code, _ = error_of(error)
    return json_reply({"error": int(code)})

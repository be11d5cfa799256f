"""DescribeAuditLog v0, Suwi's own and never advertised: the newest lines of the audit log.

Request and response are JSON: `{"lines_max": 100}`, optional, and `{"path": "…", "problem": null,
"lines": […]}`, the newest line first. `path` is null if this broker has no audit log; `problem`
says why the lines cannot be read. A line is written about a second after what it tells.
"""

from typing import Any

from suwi.handlers.audit_log import NEWEST_MAX, AuditLog
from suwi.handlers.json_body import long_json_reply, read_json
from suwi.net.answers import Answer, CloseConnection, Exclusive, Reply
from suwi.net.dispatch import Request


def describe_audit_log(audit: AuditLog | None, request: Request) -> Answer:
    lines_max = read_json(request).get("lines_max", NEWEST_MAX)
    if type(lines_max) is not int:
        raise CloseConnection("DescribeAuditLog: lines_max must be a number")
    return Exclusive(_answer(audit, max(1, min(lines_max, NEWEST_MAX))))


async def _answer(audit: AuditLog | None, lines_max: int) -> Reply:
    path, problem, lines = None, None, list[dict[str, Any]]()
    if audit is not None:
        path = audit.path
        try:
            lines = await audit.newest(lines_max)
        except OSError as error:
            problem = str(error)
    return await long_json_reply({"lines": lines}, path=path, problem=problem)

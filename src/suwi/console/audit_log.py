"""The newest lines of the brokers' audit logs: who changed what, and what was refused."""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from suwi.client.connection import ConnectionLost
from suwi.client.own_apis import AuditLines, newest_audit_lines, why_silent
from suwi.console.clusters import ShownCluster
from suwi.console.page import Part, Query, cut

_NAMED_MAX = 5
_ONLY = ("all", "refused")


class AuditLine(NamedTuple):
    at_ms: int
    node: int
    """The broker that wrote it."""
    principal: str
    host: str
    client_id: str | None
    request: str
    why: str | None
    """The right that was missing and the rule that denies it, or why somebody could not log in."""
    on: Sequence[str]
    """The first of `on_count` things that the request names."""
    on_count: int
    outcome: Mapping[str, int]
    """How many results of each kind the response had."""
    is_refused: bool
    lost: int
    """How many lines could not be written; the line says nothing else then."""


class Audit(NamedTuple):
    part: Part
    lines: Sequence[AuditLine]
    """The newest first, as far as the brokers tell them."""
    files: Sequence[str]
    """Where they are written."""
    off: Sequence[int]
    """The brokers without an audit log."""
    silent: Sequence[str]
    """The brokers that do not tell their lines, and why."""
    command: str


async def read_audit(shown: ShownCluster, query: Query) -> Audit:
    """With `only=refused` refusals only."""
    told = await newest_audit_lines(shown.client)
    errors = {node: each for node, each in told.items() if not isinstance(each, AuditLines)}
    if errors and len(errors) == len(told):
        for error in errors.values():
            if not isinstance(error, ConnectionLost):
                raise error
    logs = {node: each for node, each in told.items() if isinstance(each, AuditLines)}
    lines = [_line(node, fields) for node, log in logs.items() for fields in log.lines]
    if query.choice("only", *_ONLY) == "refused":
        lines = [line for line in lines if line.is_refused]
    lines.sort(key=lambda line: line.at_ms, reverse=True)
    part, rows = cut(lines, query, _text)
    unread = {node: log.problem for node, log in logs.items() if log.problem is not None}
    silent = unread | {node: why_silent(error) for node, error in errors.items()}
    files = {node: log.path for node, log in logs.items() if log.path is not None}
    return Audit(
        part,
        rows,
        [f"broker {node}: {path}" for node, path in files.items()],
        [node for node, log in logs.items() if log.path is None],
        [f"broker {node}: {why}" for node, why in silent.items()],
        f"tail -n 50 {shlex.quote(next(iter(files.values())))}" if files else "",
    )


def _line(node: int, fields: Mapping[str, Any]) -> AuditLine:
    on, outcome = fields.get("on", ()), fields.get("outcome", {})
    return AuditLine(
        fields["time_ms"],
        node,
        fields.get("principal", ""),
        fields.get("host", ""),
        fields.get("client_id"),
        fields.get("request", ""),
        _why(fields),
        on[:_NAMED_MAX],
        fields.get("on_count", len(on)),
        outcome,
        any(name == "refused" or name.endswith("authorization_failed") for name in outcome),
        fields.get("lost", 0),
    )


def _why(fields: Mapping[str, Any]) -> str | None:
    if "reason" not in fields:  # a change, or a refusal that an older version noted
        return fields.get("operation")
    what = fields.get("operation"), fields.get("mechanism"), fields.get("user")
    return f"{' '.join(filter(None, what))}: {fields['reason']}"


def _text(line: AuditLine) -> str:
    """What is searched."""
    words = line.principal, line.host, line.client_id, line.request, line.why, *line.on
    return " ".join(word or "" for word in words)

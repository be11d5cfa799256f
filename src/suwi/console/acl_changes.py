"""Changes of access rules: add one for each operation, remove one.

What can lock somebody out is confirmed: a rule that denies, the first rule about a resource that is
open to everybody without one, and the removal of the last rule that gives the user a right, or
somebody the right to change rules.
"""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from suwi.admin.access_rules import (
    Access,
    as_written,
    read_access,
    read_operation,
    read_pattern,
    read_principal,
    read_rules,
    remove_rules,
    resource_text,
)
from suwi.admin.failure import Failure
from suwi.admin.text import count_text
from suwi.client.acls import Acls
from suwi.console.change import Plan, PlanRow, about
from suwi.console.clusters import ShownCluster
from suwi.security.acls import (
    CLUSTER_NAME,
    WILDCARD,
    AclBinding,
    Operation,
    Permission,
    ResourceType,
)
from suwi.security.principal import parse_principal, user

_OPEN = "allow.everyone.if.no.acl.found"
_DENIES = "A rule that denies wins over all that allow; only super users keep the right."


class AclChange(NamedTuple):
    resource: str
    principal: str
    operations: str
    """Separated by commas."""
    host: str
    """Empty: any."""
    is_denial: bool
    is_literal: bool
    """The resource is one name, even if it ends in `*`."""


async def add_acl(shown: ShownCluster, asked: AclChange) -> Plan:
    rules = _rules(asked)
    access = await read_access(shown.client, rules[0].resource_type)
    locked_out = _closed(access, rules[0])
    if asked.is_denial:
        locked_out.append(_DENIES)
    return Plan(
        _command(shown, "acls add", asked),
        partial(Acls(shown.client).create, rules),
        f"added {count_text(len(rules), 'rule')}",
        [PlanRow(str(rule), "exists" if rule in access.rules else "", "exists") for rule in rules],
        locked_out,
        confirm=rules[0].principal if locked_out else "",
    )


async def remove_acl(shown: ShownCluster, asked: AclChange) -> Plan:
    rules = _rules(asked)
    access = await read_access(shown.client, rules[0].resource_type)
    for rule in rules:
        if rule not in access.rules:
            raise Failure(f"there is no such rule: {rule}")
    locked_out, notes = _lost(access, rules, shown.user)
    return Plan(
        _command(shown, "acls remove", asked),
        partial(remove_rules, shown.client, rules),
        f"removed {count_text(len(rules), 'rule')}",
        [PlanRow(str(rule), "exists", "") for rule in rules],
        [*locked_out, *notes],
        confirm=rules[0].principal if locked_out else "",
    )


def _rules(asked: AclChange) -> list[AclBinding]:
    """Says which field is wrong."""
    resource, principal, operations, host, is_denial, is_literal = asked
    with about("resource"):
        pattern = read_pattern(resource, is_literal=is_literal)
    with about("principal"):
        read_principal(principal)
    with about("operations"):
        for operation in operations.split(","):
            read_operation(operation.strip())
    with about("host"):
        hosts = [host.strip() or WILDCARD]
        return read_rules([principal], operations, pattern, hosts, denies=is_denial)


def _command(shown: ShownCluster, verb: str, asked: AclChange) -> str:
    options = ["--from", asked.host.strip()] if asked.host.strip() not in ("", WILDCARD) else []
    options += ["--deny"] if asked.is_denial else []
    options += ["--literal"] if asked.is_literal else []
    return shown.command(verb, asked.principal, asked.operations, asked.resource, options=options)


def _closed(access: Access, rule: AclBinding) -> list[str]:
    """Who is locked out by the first rule about something."""
    if not access.settings.allows_without_rules or access.mentions(rule):
        return []
    what = resource_text(rule)
    return [f"It is the first rule about {what}: whoever it does not name loses it ({_OPEN})."]


def _lost(
    access: Access, rules: Sequence[AclBinding], own_name: str | None
) -> tuple[list[str], list[str]]:
    """What locks somebody out if these rules are removed, and what else changes."""
    after, locked_out, notes = access.replaced(rules, ()), list[str](), list[str]()
    for rule in rules:
        if rule.permission is Permission.DENY:
            continue
        who, what = parse_principal(rule.principal), resource_text(rule)
        if access.settings.allows_without_rules and not after.mentions(rule):
            notes.append(f"No rule about {what} is left, so everybody may use it: {_OPEN}.")
        if access.gives(rule, who) and not after.gives(rule, who):
            notes.append(f"{who} loses the right to {as_written(rule.operation)} on {what}.")
        own = None if own_name is None else user(own_name)
        if own is not None and access.gives(rule, own) and not after.gives(rule, own):
            locked_out.append("It is the last rule that gives you this right.")
        control = who, rule.host, Operation.ALTER, ResourceType.CLUSTER, CLUSTER_NAME
        if access.decide(*control).is_allowed and not after.decide(*control).is_allowed:
            locked_out.append(f"{who} can change no access rules any more.")
    return locked_out, notes

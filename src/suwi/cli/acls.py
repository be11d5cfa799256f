"""`suwi acls`."""

from typing import Annotated

import typer

from suwi.admin.access_rules import (
    as_written,
    decide,
    read_operation,
    read_pattern,
    read_principal,
    read_rules,
    remove_rules,
    resource_text,
)
from suwi.admin.text import printable
from suwi.cli.output import document, say, table
from suwi.cli.session import Json, on_cluster
from suwi.client.acls import Acls
from suwi.client.cluster import Cluster
from suwi.security.acls import WILDCARD, AclBinding, AclFilter, PatternType

app = typer.Typer(rich_markup_mode=None, no_args_is_help=True, add_completion=False)

_NOT_ALLOWED = 1

_Principal = Annotated[
    str, typer.Argument(metavar="PRINCIPAL", help="A user: alice, User:alice; User:* for all.")
]
_Operations = Annotated[
    str, typer.Argument(metavar="OPERATION", help="read, write, …; several separated by commas.")
]
_Resource = Annotated[
    str,
    typer.Argument(
        metavar="RESOURCE",
        help="cluster, topic:NAME, group:NAME, transactional-id:NAME; NAME* for all names that "
        "begin so, * for all.",
    ),
]
_Deny = Annotated[bool, typer.Option("--deny", help="Deny it, whatever else allows it.")]
_Principals = Annotated[
    list[str] | None,
    typer.Option("--principal", metavar="PRINCIPAL", help="Another principal; can be repeated."),
]
_Hosts = Annotated[
    list[str] | None,
    typer.Option(
        "--from",
        "--host",
        metavar="HOST",
        help="An address or a range, as 10.0.0.0/8; can be repeated. Default: any.",
    ),
]
_Literal = Annotated[
    bool, typer.Option("--literal", help="RESOURCE is one name, even if it ends in *.")
]


@app.command()
@on_cluster
async def add(
    cluster: Cluster,
    principal: _Principal,
    operation: _Operations,
    resource: _Resource,
    principals: _Principals = None,
    hosts: _Hosts = None,
    literal: _Literal = False,
    deny: _Deny = False,
) -> None:
    """Add access rules: one for each principal, operation and host.

    \b
    suwi acls add alice read topic:orders
    suwi acls add alice read group:reports --principal bob
    suwi acls add app write,create 'topic:orders-*' --from 10.0.0.0/8
    """
    pattern = read_pattern(resource, is_literal=literal)
    everyone = [principal, *(principals or ())]
    rules = read_rules(everyone, operation, pattern, hosts or [WILDCARD], denies=deny)
    await Acls(cluster).create(rules)
    for rule in rules:
        say(f"added: {printable(str(rule))}")


@app.command(name="list")
@on_cluster
async def list_(
    cluster: Cluster,
    principal: Annotated[
        str | None, typer.Option(metavar="PRINCIPAL", help="Only rules for this principal.")
    ] = None,
    resource: Annotated[
        str | None,
        typer.Option(metavar="RESOURCE", help="Only rules that apply to this resource."),
    ] = None,
    literal: _Literal = False,
    json: Json = False,
) -> None:
    """List the access rules."""
    wanted = AclFilter()
    if principal is not None:
        wanted = wanted._replace(principal=str(read_principal(principal)))
    if resource is not None:
        kind, pattern_type, name = read_pattern(resource, is_literal=literal)
        if pattern_type is PatternType.LITERAL:
            pattern_type = PatternType.MATCH
        wanted = wanted._replace(resource_type=kind, pattern_type=pattern_type, name=name)
    rules = await Acls(cluster).describe(wanted)
    if json:
        document([_as_json(rule) for rule in rules])
    elif not rules:
        say("no rules")
    else:
        columns = ("permission", "principal", "operation", "resource", "host")
        table(columns, [list(_as_json(rule).values()) for rule in rules])


@app.command()
@on_cluster
async def remove(
    cluster: Cluster,
    principal: _Principal,
    operation: _Operations,
    resource: _Resource,
    principals: _Principals = None,
    hosts: _Hosts = None,
    literal: _Literal = False,
    deny: _Deny = False,
) -> None:
    """Remove access rules: those that `add` with the same arguments adds."""
    pattern = read_pattern(resource, is_literal=literal)
    everyone = [principal, *(principals or ())]
    rules = read_rules(everyone, operation, pattern, hosts or [WILDCARD], denies=deny)
    for rule in await remove_rules(cluster, rules):
        say(f"removed: {printable(str(rule))}")


@app.command()
@on_cluster
async def check(
    cluster: Cluster,
    principal: _Principal,
    operation: Annotated[
        str, typer.Argument(metavar="OPERATION", help="One operation: read, write, …")
    ],
    resource: _Resource,
    host: Annotated[
        str, typer.Option("--from", "--host", metavar="HOST", help="The client's address.")
    ] = "127.0.0.1",
    json: Json = False,
) -> None:
    """Say whether a principal may do something, and which rule decides. Ends with 1 if not."""
    decision = await decide(cluster, principal, operation, resource, host)
    if json:
        rule = _as_json(decision.rule) if decision.rule is not None else None
        document({"allowed": decision.is_allowed, "reason": decision.reason, "rule": rule})
    else:
        asked = as_written(read_operation(operation))
        what = f"{read_principal(principal)} {asked} {resource}"
        verdict = "allowed" if decision.is_allowed else "not allowed"
        say(f"{verdict}: {printable(what)} ({printable(decision.reason)})")
    if not decision.is_allowed:
        raise typer.Exit(_NOT_ALLOWED)


def _as_json(rule: AclBinding) -> dict[str, str]:
    return {
        "permission": rule.permission.name.lower(),
        "principal": rule.principal,
        "operation": as_written(rule.operation),
        "resource": resource_text(rule),
        "host": rule.host,
    }

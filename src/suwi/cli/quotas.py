"""`suwi quotas`."""

from typing import Annotated

import typer

from suwi.admin.failure import Failure
from suwi.admin.quotas import (
    KEYS,
    entity_text,
    number_text,
    read_entity,
    read_key,
    read_quotas,
    read_usages,
)
from suwi.admin.text import duration_text, printable
from suwi.cli.output import complain_of_silent, document, say, table
from suwi.cli.session import Json, on_cluster
from suwi.client.cluster import Cluster
from suwi.client.quotas import ClientQuotas

app = typer.Typer(rich_markup_mode=None, no_args_is_help=True, add_completion=False)

_User = Annotated[
    str | None, typer.Option(metavar="NAME", help="A user; *: each that has no quota of its own.")
]
_ClientId = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="A client id; *: each that has no quota of its own."),
]
_Ip = Annotated[
    str | None,
    typer.Option(metavar="ADDRESS", help="An address; *: each that has no quota of its own."),
]


@app.command(name="set")
@on_cluster
async def set_(
    cluster: Cluster,
    quotas: Annotated[list[str], typer.Argument(metavar="KEY=VALUE...", help=f"{', '.join(KEYS)}")],
    user: _User = None,
    client_id: _ClientId = None,
    ip: _Ip = None,
) -> None:
    """Limit what clients use per second, on each broker.

    \b
    suwi quotas set producer_byte_rate=1000000 --user alice
    suwi quotas set consumer_byte_rate=500000 request_percentage=20 --user '*' --client-id app
    suwi quotas set connection_creation_rate=10 --ip '*'
    """
    entity = read_entity(user, client_id, ip)
    values = read_quotas(entity, quotas)
    await ClientQuotas(cluster).alter(entity, values)
    for key, value in values.items():
        say(f"set: {printable(entity_text(entity))} {key}={number_text(value)}")


@app.command(name="list")
@on_cluster
async def list_(
    cluster: Cluster,
    user: _User = None,
    client_id: _ClientId = None,
    ip: _Ip = None,
    json: Json = False,
) -> None:
    """List quotas: all, or those of entities with these names."""
    has_filter = any(name is not None for name in (user, client_id, ip))
    wanted = read_entity(user, client_id, ip) if has_filter else ()
    found = await ClientQuotas(cluster).describe(wanted)
    rows = sorted((entity_text(entity), quotas) for entity, quotas in found.items())
    if json:
        document([{"entity": text, "quotas": quotas} for text, quotas in rows])
    elif not rows:
        say("no quotas")
    else:
        columns = ("entity", "quota", "per second")
        each = [
            (text, key, number_text(quotas[key])) for text, quotas in rows for key in sorted(quotas)
        ]
        table(columns, each)


@app.command()
@on_cluster
async def remove(
    cluster: Cluster,
    keys: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY...]", help="Default: all of the entity.")
    ] = None,
    user: _User = None,
    client_id: _ClientId = None,
    ip: _Ip = None,
) -> None:
    """Remove quotas of an entity."""
    entity, quotas = read_entity(user, client_id, ip), ClientQuotas(cluster)
    known = (await quotas.describe(entity)).get(entity, {})
    gone = [read_key(key) for key in keys or known]
    if not known or not all(key in known for key in gone):
        raise Failure(
            f"{entity_text(entity)} has no such quota; `suwi quotas list` shows the quotas"
        )
    await quotas.alter(entity, dict.fromkeys(gone))
    for key in gone:
        say(f"removed: {printable(entity_text(entity))} {key}")


@app.command()
@on_cluster
async def usage(cluster: Cluster, json: Json = False) -> int:
    """Show how close clients are to their quotas, each on the broker where it is closest."""
    found = await read_usages(cluster)
    if json:
        document(found.rows)
    elif found.rows:
        columns = ("client", "quota", "limit/s", "used/s", "percent", "broker", "throttled")
        rows = [
            (
                row.entity,
                row.key,
                number_text(row.limit),
                number_text(round(row.used, 1)),
                f"{100 * row.used / row.limit:.0f}",
                row.node,
                duration_text(row.throttle_ms) if row.throttle_ms else "-",
            )
            for row in found.rows
        ]
        table(columns, rows, numbers="limit/s used/s percent broker throttled")
    elif not found.silent:
        say("no client has used something of a quota lately")
    return complain_of_silent(found.silent, "usage of quotas")

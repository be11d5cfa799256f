"""`suwi console`: its options, and the clusters they name. The pages are in `suwi.console`."""

import ipaddress
import tomllib
from functools import partial
from typing import Annotated, Any

import typer

from suwi.cli.cluster import find_target
from suwi.cli.console_process import cluster_address, run_console
from suwi.cli.session import (
    AllowChanges,
    CommandConfig,
    Target,
    broker_option,
    guarded,
    read_text,
)
from suwi.cli.status import DEFAULT_TARGET
from suwi.console.clusters import ClusterAddress
from suwi.console.sessions import Public
from suwi.env import local_env

_KEYS = {"broker", "command-config", "schema-registry"}
_LOOPBACK = ("127.0.0.1", "localhost")


def console(
    broker: Annotated[
        str | None,
        broker_option(f"A broker of the cluster; several separated by commas. {DEFAULT_TARGET}"),
    ] = None,
    command_config: CommandConfig = None,
    clusters: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Show several clusters: a TOML file with a table [NAME] for each, in it broker "
            "and perhaps command-config and schema-registry.",
        ),
    ] = None,
    schema_registry: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Where the schemas of records in Avro and Protobuf are."),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            metavar="PORT", min=0, max=65535, help="Default: 9480, or another if it is taken."
        ),
    ] = None,
    host: Annotated[
        str,
        typer.Option(
            metavar="ADDRESS",
            help="The address to listen on. Others than 127.0.0.1 need --tls-cert and --tls-key.",
        ),
    ] = "127.0.0.1",
    name: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="A name by which browsers reach it; repeatable. Default: --host.",
        ),
    ] = None,
    tls_cert: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Serve HTTPS with this certificate (PEM), to users of the cluster who log in.",
        ),
    ] = None,
    tls_key: Annotated[
        str | None, typer.Option(metavar="FILE", help="The private key of --tls-cert (PEM).")
    ] = None,
    open_: Annotated[
        bool, typer.Option("--open", show_default=False, help="Open it in the web browser.")
    ] = False,
    allow_changes: AllowChanges = False,
    faults: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help="Kill, pause and cut off the brokers of this machine that have their data there, "
            "by click: those of `suwi cluster`, or of `suwi serve --brokers N --faults`.",
        ),
    ] = None,
) -> None:
    """Show clusters and their records in a web browser.

    It runs until Ctrl-C. On 127.0.0.1 the printed address has a token, which becomes a session of
    the browser; the addresses of pages can be passed on, they give no access. With --tls-cert users
    of the cluster log in by SASL, and their own connections do the work. Nothing can be changed,
    unless --allow-changes is given: then each change is a line in its log.
    """
    public = _public(host, name or [host], tls_cert, tls_key)
    with_users = public is not None
    if faults is not None and (with_users or clusters is not None):
        raise typer.BadParameter(
            "is for one cluster of this machine, and for this machine only", param_hint="--faults"
        )
    if clusters is None:
        target = find_target(None, broker, command_config)
        shown = [
            cluster_address(target, with_users=with_users, registry=schema_registry, breaks=faults)
        ]
    else:
        shown = _from_file(clusters, with_users=with_users)
    job = partial(run_console, shown, port, opens=open_, public=public, allow_changes=allow_changes)
    raise typer.Exit(guarded(job, interrupted=0))


def _public(host: str, names: list[str], certificate: str | None, key: str | None) -> Public | None:
    """None: it is for this machine only."""
    if certificate is None and key is None:
        if host not in _LOOPBACK:
            raise typer.BadParameter(
                f"{host} can be reached by others, so it needs --tls-cert and --tls-key",
                param_hint="--host",
            )
        return None
    if certificate is None or key is None:
        raise typer.BadParameter("give both --tls-cert and --tls-key", param_hint="--tls-cert")
    try:
        if ipaddress.ip_address(names[0]).is_unspecified:
            raise typer.BadParameter(
                f"{host} is no name: say by which name browsers reach it", param_hint="--name"
            )
    except ValueError:
        pass  # a name
    from suwi.security.tls import BadTls, Store, TlsSettings, make_server_context

    store = Store(
        "--tls-cert, --tls-key",
        certificates=read_text(certificate, "--tls-cert"),
        key=read_text(key, "--tls-key"),
    )
    try:
        tls = make_server_context(TlsSettings(store, Store("")), local_env().disk)
    except BadTls as error:
        raise typer.BadParameter(str(error), param_hint="--tls-cert") from None
    return Public(host, [f"[{name}]" if ":" in name else name for name in names], tls)


def _from_file(path: str, *, with_users: bool) -> list[ClusterAddress]:
    try:
        tables: dict[str, Any] = tomllib.loads(read_text(path, "--clusters"))
    except tomllib.TOMLDecodeError as error:
        raise typer.BadParameter(f"{path}: {error}", param_hint="--clusters") from None
    shown = []
    for name, table in tables.items():
        if "/" in name or name in ("", ".", "..") or not name.isprintable():
            raise typer.BadParameter(
                f"{path}: [{name!r}] cannot be the name of a cluster: it is a part of addresses, "
                'so it has no "/" and no control characters, and is not "." or ".."',
                param_hint="--clusters",
            )
        is_cluster = isinstance(table, dict) and "broker" in table and table.keys() <= _KEYS
        if not is_cluster or not all(isinstance(value, str) for value in table.values()):
            raise typer.BadParameter(
                f'{path}: [{name}] needs broker = "HOST:PORT", and may have command-config and '
                "schema-registry",
                param_hint="--clusters",
            )
        target = Target(table["broker"], table.get("command-config"))
        registry = table.get("schema-registry")
        shown.append(cluster_address(target, name, with_users=with_users, registry=registry))
    if not shown:
        raise typer.BadParameter(f"{path} names no cluster", param_hint="--clusters")
    return shown

"""Runs the console in this process, for `suwi console` and `suwi cluster start --console`."""

import asyncio
import importlib.util
import logging
import sys
import webbrowser

import typer

from suwi.admin.failure import Failure
from suwi.cli.output import say_at_once, set_up_logging
from suwi.cli.session import Target, connector, user_connector
from suwi.client.addresses import parse_addresses
from suwi.console.clusters import Breakable, ClusterAddress
from suwi.console.sessions import Public
from suwi.decoders.errors import CannotDecode
from suwi.decoders.registry import Registry
from suwi.env import local_env
from suwi.local_cluster.served_brokers import faults_of

DEFAULT_NAME = "cluster"
_FILE_OF_USERS = "client.properties"
"""Commands for users who log in name a file that each of them has."""


def run_console(
    shown: list[ClusterAddress],
    port: int | None = None,
    *,
    opens: bool = False,
    public: Public | None = None,
    allow_changes: bool = False,
) -> None:
    """Until Ctrl-C. Raises `Failure`."""
    if not all(importlib.util.find_spec(name) for name in ("starlette", "uvicorn")):
        raise Failure("the console needs more packages: pip install 'suwi[console]'")
    from suwi.console.server import serve_console

    def ready(address: str) -> None:
        say_at_once(f"console at    {address}")
        if opens:
            asyncio.get_running_loop().run_in_executor(None, webbrowser.open, address)

    set_up_logging("warning" if public is None else "info")  # who logs in
    if allow_changes or any(each.breakable is not None for each in shown):
        log_changes()
    serving = serve_console(
        shown, local_env(), port, ready, public=public, allow_changes=allow_changes
    )
    asyncio.run(serving)


def log_changes() -> None:
    """One JSON line for each change, on stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    audit = logging.getLogger("suwi.console.audit")
    audit.addHandler(handler)
    audit.setLevel(logging.INFO)
    audit.propagate = False


def cluster_address(
    target: Target,
    name: str = DEFAULT_NAME,
    *,
    with_users: bool = False,
    registry: str | None = None,
    breaks: str | None = None,
) -> ClusterAddress:
    """`with_users`: for a console whose users log in, which needs settings for SASL. `breaks`: the
    directory of a cluster on this machine whose faults it may cause."""
    try:
        addresses = parse_addresses(target.broker)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--broker") from None
    try:
        schemas = None if registry is None else Registry(registry)
    except CannotDecode as error:
        raise typer.BadParameter(str(error), param_hint="--schema-registry") from None
    options, connect, log_in = ["--broker", target.broker], None, None
    options_of_users = [*options, "--command-config", _FILE_OF_USERS]
    if target.command_config is not None:
        options += ["--command-config", target.command_config]
        connect, _ = connector(target.command_config)
        log_in = user_connector(target.command_config) if with_users else None
    elif with_users:
        raise typer.BadParameter(
            "users log in by SASL: name a file with the settings of the cluster",
            param_hint="--command-config",
        )
    return ClusterAddress(
        name,
        addresses,
        connect,
        options,
        options_of_users,
        log_in=log_in,
        registry=schemas,
        breakable=None if breaks is None else Breakable(faults_of(breaks), breaks),
    )

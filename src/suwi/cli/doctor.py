"""`suwi doctor`."""

import sys
from collections.abc import Sequence
from functools import partial
from typing import Annotated

import typer

from suwi.admin.cluster_checks import check_cluster
from suwi.admin.cluster_health import HealthCriteria
from suwi.admin.config_checks import check_config
from suwi.admin.data_checks import check_data
from suwi.admin.finding import ERROR, Finding
from suwi.admin.text import count_text, printable
from suwi.cli.cluster import find_target, is_option_given
from suwi.cli.output import document, say
from suwi.cli.session import CommandConfig, Json, broker_option, guarded, run
from suwi.cli.status import DEFAULT_TARGET, UNREACHABLE, Timeout, client_settings
from suwi.client.cluster import Cluster
from suwi.env import local_env


def doctor(
    context: typer.Context,
    config: Annotated[
        str | None, typer.Option(metavar="FILE", help="Check a server.properties.")
    ] = None,
    data: Annotated[
        list[str] | None,
        typer.Option(metavar="DIR", help="Check a broker's data directory; repeatable."),
    ] = None,
    timeout: Timeout = 5.0,
    json: Json = False,
    broker: Annotated[
        str | None, broker_option(f"Check the running cluster of this broker. {DEFAULT_TARGET}")
    ] = None,
    command_config: CommandConfig = None,
) -> None:
    """Check a configuration, a data directory or a running cluster, and say what to do.

    Without --config and --data, a running cluster is checked; with them, only if --broker names it.
    Nothing is changed.

    Exit code 0: nothing was found. 1: something was found. 2: no broker responds.
    """
    found: list[Finding] = []

    def tell(text: str) -> None:
        sys.stderr.write(f"{text}\n")

    def check_files() -> int:
        env = local_env()
        if config is not None:
            found.extend(check_config(config, env))
        for path in data or ():
            found.extend(check_data(path, env, tell))
        return int(bool(found))

    async def work(cluster: Cluster) -> int:
        criteria = HealthCriteria(lag_min=None, timeout_s=timeout)
        found.extend(await check_cluster(cluster, local_env().clock, criteria))
        return int(bool(found))

    target = None
    if is_option_given(context, "broker") or not (config or data):
        target = find_target(None, broker, command_config)
    code = guarded(check_files)
    if target is not None:
        try:
            run(target, work, unreachable=UNREACHABLE, settings=client_settings(timeout))
        except typer.Exit as ended:
            code = max(code, ended.exit_code)
    # What was found in files is shown even if no broker responds.
    if found or code == 0:
        code = max(code, guarded(partial(_print, found, json=json)))
    raise typer.Exit(code)


def _print(found: Sequence[Finding], *, json: bool) -> None:
    if json:
        document(found)
        return
    for finding in sorted(found, key=lambda each: each.level != ERROR):
        say(f"{finding.level:8} {printable(f'{finding.about}: {finding.problem}')}")
        say(f"         {printable(finding.advice)}")
    say("nothing to complain about" if not found else f"{count_text(len(found), 'finding')}")

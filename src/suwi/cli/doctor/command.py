"""Implementation of `suwi doctor`: runs the checks and prints what they find."""

from collections.abc import Sequence
from functools import partial

import typer

from suwi.cli.doctor.cluster_checks import check_cluster
from suwi.cli.doctor.config_checks import check_config
from suwi.cli.doctor.data_checks import check_data
from suwi.cli.doctor.finding import ERROR, Finding
from suwi.cli.options import Target
from suwi.cli.output import count_text, document, printable, say
from suwi.cli.session import guarded, run
from suwi.cli.status import UNREACHABLE, Wanted, client_settings
from suwi.client.cluster import Cluster
from suwi.env import local_env


def check(
    target: Target | None,
    config: str | None,
    data: Sequence[str],
    *,
    timeout_s: float,
    json: bool,
) -> None:
    """Exit code 0: nothing found. 1: something was found. 2: no broker responds. What was found in
    files is shown in any case."""
    found: list[Finding] = []

    def check_files() -> int:
        env = local_env()
        if config is not None:
            found.extend(check_config(config, env))
        for path in data:
            found.extend(check_data(path, env))
        return int(bool(found))

    async def work(cluster: Cluster) -> int:
        wanted = Wanted(lag_min=None, timeout_s=timeout_s)
        found.extend(await check_cluster(cluster, wanted))
        return int(bool(found))

    code = guarded(check_files)
    if target is not None:
        try:
            run(target, work, unreachable=UNREACHABLE, settings=client_settings(timeout_s))
        except typer.Exit as ended:
            code = max(code, ended.exit_code)
    if found or code == 0:
        code = max(code, guarded(partial(_print, found, json=json)))
    raise typer.Exit(code)


def _print(found: Sequence[Finding], *, json: bool) -> None:
    if json:
        document([finding._asdict() for finding in found])
        return
    for finding in sorted(found, key=lambda each: each.level != ERROR):
        say(f"{finding.level:8} {printable(f'{finding.about}: {finding.problem}')}")
        say(f"         {printable(finding.advice)}")
    say("nothing to complain about" if not found else f"{count_text(len(found), 'finding')}")

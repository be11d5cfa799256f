"""The `suwi` command: its subcommands, and the options of `suwi serve`."""

import gc
import sys
from typing import Annotated, Optional

import typer

from suwi import __version__
from suwi.cli.commands import (
    cluster,
    configs,
    dump,
    explain,
    groups,
    pipeline,
    records,
    repair,
    status,
    topics,
    transactions,
    users,
)

app = typer.Typer(
    help="Suwi, a Kafka-compatible event log.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"suwi {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    if sys.platform not in ("linux", "darwin"):
        typer.echo("suwi runs on Linux and macOS only", err=True)
        raise typer.Exit(2)


@app.command()
def serve(
    listen: Annotated[
        Optional[str],  # noqa: UP045 - typer reads it at run time
        typer.Option(metavar="HOST:PORT", help="Address to listen on. Default: 127.0.0.1:9092"),
    ] = None,
    data: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(metavar="DIR", help="Data directory. Default: ./suwi-data"),
    ] = None,
    config: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(metavar="FILE", help="A server.properties with Kafka's keys."),
    ] = None,
    settings: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option("--set", metavar="KEY=VALUE", help="Set one of Kafka's keys; repeatable."),
    ] = None,
    brokers: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=1,
            max=99,
            help="Number of brokers in this process, on consecutive ports. Default: 1",
            show_default=False,
        ),
    ] = 1,
    zookeeper: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(
            metavar="HOST:PORT,...[/PATH]",
            help="The ZooKeeper ensemble of the cluster that this broker belongs to.",
        ),
    ] = None,
    node_id: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option("--id", metavar="N", min=0, help="The id of this broker in its cluster."),
    ] = None,
    insecure: Annotated[
        bool,
        typer.Option(
            "--insecure",
            show_default=False,
            help="Allow plain-text listeners that other machines can reach.",
        ),
    ] = False,
    adopt: Annotated[
        bool,
        typer.Option(help="Adopt topics that Apache Kafka wrote to the data directory."),
    ] = False,
    metrics_port: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(
            metavar="PORT", min=0, max=65535, help="Serve Prometheus metrics on this port."
        ),
    ] = None,
    metrics_host: Annotated[
        str, typer.Option(metavar="HOST", help="The address of the metrics.")
    ] = "127.0.0.1",
    log_level: Annotated[
        str, typer.Option(metavar="LEVEL", help="debug, info, warning or error.")
    ] = "info",
) -> None:
    """Start one or more brokers. They run until Ctrl-C or SIGTERM.

    No configuration is required. Settings have Kafka's names and come from --config, then the
    environment (SUWI_LOG_RETENTION_MS or KAFKA_LOG_RETENTION_MS for log.retention.ms), then --set,
    --zookeeper, --id, --listen and --data; later sources override earlier ones.

    With --zookeeper, the process is one broker of a cluster: start one with each --id.
    """
    gc.disable()  # imported modules stay: exclude them from garbage collection
    from suwi.cli.serve import serve as run

    gc.freeze()
    gc.enable()
    raise typer.Exit(
        run(
            listen=listen,
            data=data,
            config=config,
            settings=settings or [],
            brokers=brokers,
            zookeeper=zookeeper,
            node_id=node_id,
            insecure=insecure,
            adopt=adopt,
            metrics=None if metrics_port is None else (metrics_host, metrics_port),
            log_level=log_level,
        )
    )


app.command()(records.produce)
app.command()(records.consume)
app.command()(explain.explain)
app.command()(dump.dump)
app.command()(status.status)
app.command()(status.doctor)
app.add_typer(topics.app, name="topics")
app.add_typer(groups.app, name="groups")
app.add_typer(transactions.app, name="transactions")
app.add_typer(cluster.app, name="cluster")
app.add_typer(configs.app, name="configs")
app.add_typer(users.app, name="users")
app.add_typer(repair.app, name="repair")
app.add_typer(pipeline.app, name="pipeline")

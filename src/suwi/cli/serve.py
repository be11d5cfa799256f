"""`suwi serve`: its options, and the settings they give. `broker_process.py` runs the brokers."""

import logging
import os
from collections.abc import Mapping
from typing import Annotated

import typer

from suwi.admin.server_properties import (
    Setting,
    combine,
    from_environment,
    from_file,
    from_options,
    parse_settings,
)
from suwi.cli.output import LOG_LEVELS, complain, set_up_logging
from suwi.cli.session import AllowChanges, MetricsHost, MetricsPort
from suwi.env import Env, local_env
from suwi.model.broker_config import BrokerConfig
from suwi.model.config_kinds import BadConfig
from suwi.model.listener_config import parse_listeners, refuse_plain_text_beyond_loopback

log = logging.getLogger(__name__)

_PORT_MAX = 65535
_OPTION_KEYS = {
    "--zookeeper": "zookeeper.connect",
    "--id": "node.id",
    "--listen": "listeners",
    "--data": "log.dirs",
}


def serve(
    listen: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Address to listen on. Default: 127.0.0.1:9092"),
    ] = None,
    data: Annotated[
        str | None, typer.Option(metavar="DIR", help="Data directory. Default: ./suwi-data")
    ] = None,
    config: Annotated[
        str | None, typer.Option(metavar="FILE", help="A server.properties with Kafka's keys.")
    ] = None,
    settings: Annotated[
        list[str] | None,
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
        str | None,
        typer.Option(
            metavar="HOST:PORT,...[/PATH]",
            help="The ZooKeeper ensemble of the cluster that this broker belongs to.",
        ),
    ] = None,
    node_id: Annotated[
        int | None,
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
        bool, typer.Option(help="Adopt topics that Apache Kafka wrote to the data directory.")
    ] = False,
    console: Annotated[
        bool,
        typer.Option(
            "--console", show_default=False, help="Also start `suwi console` for these brokers."
        ),
    ] = False,
    allow_changes: AllowChanges = False,
    faults: Annotated[
        bool,
        typer.Option(
            "--faults",
            show_default=False,
            help="With --brokers: they can be killed, paused, cut off, by `suwi cluster kill N "
            "--data DIR` and its neighbours, and by click in the console.",
        ),
    ] = False,
    metrics_port: MetricsPort = None,
    metrics_host: MetricsHost = "127.0.0.1",
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
    # Loads the broker, which takes longer than to print the help.
    from suwi.cli.broker_process import ServeFailed, run_brokers

    env = local_env()
    try:
        if log_level.lower() not in LOG_LEVELS:
            raise BadConfig(f"--log-level {log_level}: allowed: {', '.join(LOG_LEVELS)}")
        set_up_logging(log_level)
        broker_config = _configure(
            env,
            config,
            settings or [],
            {"--zookeeper": zookeeper, "--id": node_id, "--listen": listen, "--data": data},
        )
        if not insecure:
            refuse_plain_text_beyond_loopback(parse_listeners(broker_config))
        if adopt and brokers > 1:
            raise BadConfig("--adopt works with one broker only")
        metrics = None if metrics_port is None else (metrics_host, metrics_port)
        if metrics_port is not None:
            _check_metrics_ports(metrics_port, brokers)
        if allow_changes and not console:
            raise BadConfig("--allow-changes goes with --console")
        options = ("--allow-changes",) if allow_changes else ()
        with_console = options if console else None
        if faults:
            if brokers == 1 or zookeeper is not None:
                raise BadConfig("--faults is for several brokers in one process: --brokers 3")
            if metrics_port is not None or adopt:
                raise BadConfig("--faults: without --metrics-port and --adopt")
            from suwi.cli.breakable_brokers import run_breakable

            run_breakable(env, broker_config, brokers, with_console)
            return
        run_brokers(env, broker_config, brokers, metrics, adopt=adopt, console=with_console)
    except (BadConfig, ServeFailed) as error:
        complain(str(error))
        raise typer.Exit(1) from None


def _configure(
    env: Env, config: str | None, settings: list[str], options: Mapping[str, object]
) -> BrokerConfig:
    layers: list[list[Setting]] = []
    if config is not None:
        layers.append(from_file(config, _read_config(env, config)))
    layers.append(from_environment(os.environ))
    layers.append(from_options(settings))
    for option, value in options.items():
        if value is not None:
            layers.append([Setting(option, _OPTION_KEYS[option], _option_value(option, value))])
    parsed = parse_settings(combine(layers))
    for key in parsed.ignored:
        log.warning("configuration has no effect here", extra={"key": key})
    if not parsed.config.log_dirs:
        raise BadConfig("log.dirs is empty: name a directory for the data")
    return parsed.config


def _option_value(option: str, value: object) -> str:
    if option != "--listen" or "://" in str(value):
        return str(value)  # As Kafka has it: PLAINTEXT://HOST:PORT.
    _, colon, port = str(value).rpartition(":")
    if not (colon and port.isascii() and port.isdigit()):
        raise BadConfig(f"--listen {value}: give it as HOST:PORT, like 127.0.0.1:9092")
    return f"PLAINTEXT://{value}"


def _read_config(env: Env, path: str) -> str:
    try:
        return env.disk.read_bytes(path).decode()
    except OSError as error:
        raise BadConfig(f"--config {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise BadConfig(f"--config {path}: not a text file in UTF-8") from None


def _check_metrics_ports(port: int, brokers: int) -> None:
    last = port + brokers - 1
    if port and last > _PORT_MAX:
        raise BadConfig(f"--metrics-port {port}: {brokers} brokers need the ports up to {last}")

"""`suwi serve`: from settings to a running broker, and its clean end."""

import asyncio
import logging
import os
import signal
import sys

from suwi import __version__
from suwi.broker.broker import Broker
from suwi.broker.listeners import parse_listeners, refuse_plain_text_beyond_loopback
from suwi.cli.log_format import set_up_logging
from suwi.cli.properties import from_environment, from_settings, parse_properties
from suwi.env import Env, local_env
from suwi.log.log_directory import DirectoryInUse, ForeignDirectory
from suwi.metadata.embedded import EmbeddedStore, StoreInUse
from suwi.model.broker_config import BrokerConfig, parse_broker_config
from suwi.model.config_kinds import BadConfig

log = logging.getLogger(__name__)

_METADATA_FILE = "suwi-metadata.sqlite"
_LOG_LEVELS = ("debug", "info", "warning", "error")


def serve(
    *,
    listen: str | None,
    data: str | None,
    config: str | None,
    settings: list[str],
    insecure: bool,
    log_level: str,
) -> int:
    """Run a broker until it is told to stop; the process's exit code."""
    env = local_env()
    try:
        if log_level not in _LOG_LEVELS:
            raise BadConfig(f"--log-level {log_level}: allowed: {', '.join(_LOG_LEVELS)}")
        set_up_logging(log_level)
        broker_config = _configure(env, listen, data, config, settings)
        if not insecure:
            refuse_plain_text_beyond_loopback(parse_listeners(broker_config))
        asyncio.run(_run(env, broker_config))
    except (BadConfig, DirectoryInUse, ForeignDirectory) as error:
        return _complain(str(error))
    except StoreInUse as error:
        return _complain(f"{error} is in use by another broker")
    except OSError as error:
        return _complain(str(error))
    return 0


def _complain(message: str) -> int:
    sys.stderr.write(f"suwi: {message}\n")
    return 1


def _configure(
    env: Env, listen: str | None, data: str | None, config: str | None, settings: list[str]
) -> BrokerConfig:
    properties: dict[str, str] = {}
    if config is not None:
        try:
            properties |= parse_properties(env.disk.read_bytes(config).decode())
        except (OSError, UnicodeDecodeError) as error:
            raise BadConfig(f"--config {config}: {error}") from None
    properties |= from_environment(os.environ)
    properties |= from_settings(settings)
    if listen is not None:
        if ":" not in listen:
            raise BadConfig(f"--listen {listen}: give it as HOST:PORT")
        properties["listeners"] = f"PLAINTEXT://{listen}"
    if data is not None:
        properties["log.dirs"] = data
    parsed = parse_broker_config(properties)
    for key in parsed.ignored:
        log.warning("configuration has no effect here", extra={"key": key})
    if len(parsed.config.log_dirs) != 1:
        raise BadConfig("log.dirs: one directory, please; several are not supported yet")
    return parsed.config


async def _run(env: Env, config: BrokerConfig) -> None:
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    stop = asyncio.Event()
    for name in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(name, stop.set)
    directory = config.log_dirs[0]
    env.disk.make_dirs(directory)
    store = await EmbeddedStore.open(f"{directory}/{_METADATA_FILE}")
    try:
        broker = Broker(env, config, store.view())
        await broker.start()
        _greet(broker, loop.time() - began_s)
        await stop.wait()
        sys.stdout.write("stopping ...\n")
        sys.stdout.flush()
        await broker.stop()
        sys.stdout.write("stopped cleanly\n")
    finally:
        await store.close()


def _greet(broker: Broker, took_s: float) -> None:
    addresses = [
        f"{listener.name}://{listener.host}:{listener.port}" for listener in broker.listeners
    ]
    lines = [
        f"Suwi {__version__}, broker {broker.node_id}, ready in {took_s * 1000:.0f} ms",
        f"listening on  {', '.join(addresses)}",
        f"data in       {os.path.abspath(broker.directory.path)}",
        "stop with     Ctrl-C",
        "",
    ]
    sys.stdout.write("\n".join(lines))
    sys.stdout.flush()

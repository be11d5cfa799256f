"""Runs the brokers of `suwi serve` in this process: starts them, reports failures, stops them."""

import asyncio
import contextlib
import gc
import logging
import os
import signal
import sqlite3
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TextIO

from suwi import __version__
from suwi.broker.broker import Broker, BrokerFailed
from suwi.broker.in_process import CannotStartBroker, configs_of, start_all, stop_all
from suwi.broker.socket_server import bind_problem
from suwi.controller.registration import IdInUse
from suwi.env import Env
from suwi.env.problems import ProblemKind
from suwi.env.tasks import cancel_and_wait
from suwi.log.checkpoints import ForeignDirectory
from suwi.log.directory_state import NO_DESCRIPTORS
from suwi.log.log_directory import DirectoryInUse, make_lasting_dirs
from suwi.log.names import META_PROPERTIES, parse_partition_dir_name
from suwi.metadata.embedded import EmbeddedStore, StoreInUse
from suwi.metadata.store import ForeignZnodes, MetadataStore, StoreRolledBack, Unavailable
from suwi.model.broker_config import BrokerConfig
from suwi.model.config_kinds import BadConfig
from suwi.model.features import UnsupportedFeature
from suwi.model.ids import NodeId
from suwi.model.listener_config import ListenerSpec, address, parse_listeners
from suwi.net.stats import NetStats

if TYPE_CHECKING:
    from suwi.broker.metrics import MetricsServer

log = logging.getLogger(__name__)

_STOPPED_UNCLEANLY = (
    "stopped, but not everything could be written: the next start checks the logs\n"
)
_METADATA_FILE = "suwi-metadata.sqlite"
_FIRST_REPORT_S = 1.0
_REPORT_INTERVAL_S = 10.0


class ServeFailed(Exception):
    """Why a broker cannot start or has stopped by itself, for the user."""


def run_brokers(
    env: Env,
    config: BrokerConfig,
    brokers: int,
    metrics: tuple[str, int] | None,
    *,
    adopt: bool,
    console: Sequence[str] | None = None,
) -> None:
    """Returns when they were stopped. `console` are the options of a console to be started.

    Raises ServeFailed and BadConfig.
    """
    configs = [config] if brokers == 1 else configs_of(config, brokers)
    if metrics is not None:
        # Loading it on the event loop would keep the first clients waiting.
        import suwi.broker.metrics  # noqa: F401
    with failures_told():
        asyncio.run(_run(env, config.log_dirs, configs, metrics, adopt, console))


@contextlib.contextmanager
def failures_told() -> Iterator[None]:
    """Raises ServeFailed in the place of what keeps brokers from starting or running."""
    try:
        yield
    except (
        BrokerFailed,
        DirectoryInUse,
        ForeignDirectory,
        ForeignZnodes,
        IdInUse,
        StoreRolledBack,
        UnsupportedFeature,
    ) as error:
        raise ServeFailed(str(error)) from error
    except OSError as error:
        raise ServeFailed(_reason_of(error)) from error


async def _run(
    env: Env,
    directories: Sequence[str],
    configs: Sequence[BrokerConfig],
    metrics: tuple[str, int] | None,
    adopt: bool,
    console: Sequence[str] | None,
) -> None:
    loop = asyncio.get_running_loop()
    started_s = loop.time()
    _on_signals(_exit_at_once)
    broker_dirs = [path for config in configs for path in config.log_dirs]
    async with _open_stores(env, directories, configs, adopt=adopt) as stores:
        _warn_of_open_directories(env, [directories[0], *broker_dirs])
        stats = [NetStats() if metrics is not None else None for _ in configs]
        together = [NodeId(config.node_id) for config in configs]
        brokers = [
            Broker(
                env,
                config,
                store,
                stats=counts,
                adopts=adopt,
                brokers_in_process=len(configs),
                start_together=together,
            )
            for config, store, counts in zip(configs, stores, stats, strict=True)
        ]
        loop.set_exception_handler(partial(_report_loop_error, brokers))
        await _start(brokers)
        # Thousands of partitions were loaded, and most of them stay: garbage collection, which
        # stops everything, does not look at them again.
        gc.freeze()
        stop = asyncio.Event()
        _on_signals(lambda _: stop.set())
        servers = []
        if metrics is not None:
            servers = await _start_metrics(brokers, stats, *metrics)
        _print_startup_message(brokers, servers, loop.time() - started_s)
        for broker in brokers:
            log.info("broker started", extra={"node": broker.node_id, "cluster": broker.cluster_id})
        async with _console_of(brokers, console):
            await _wait_for_stop_or_failure(stop, brokers)
        write_at_once(sys.stdout, "stopping ...\n")
        clean = await stop_all(brokers)
        write_at_once(sys.stdout, "stopped cleanly\n" if clean else _STOPPED_UNCLEANLY)
    failures = [
        f"broker {broker.node_id}: {broker.failure}" for broker in brokers if broker.failure
    ]
    if failures:
        raise ServeFailed("; ".join(failures))


def _report_loop_error(
    brokers: Sequence[Broker], loop: asyncio.AbstractEventLoop, context: dict[str, Any]
) -> None:
    """One problem in the place of asyncio's traceback for each connection that it cannot accept."""
    error = context.get("exception")
    if not isinstance(error, OSError) or error.errno not in NO_DESCRIPTORS:
        loop.default_exception_handler(context)
        return
    for broker in brokers:
        broker.problems.report(ProblemKind.NO_DESCRIPTORS, "broker", str(error.strerror))


def _console_of(
    brokers: Sequence[Broker], options: Sequence[str] | None
) -> AbstractAsyncContextManager[None]:
    plain = []
    for broker in brokers:
        names = {s.name for s in parse_listeners(broker.config) if s.protocol == "PLAINTEXT"}
        plain += [address(each.host, each.port) for each in broker.listeners if each.name in names]
    return console_process(plain, options)


@asynccontextmanager
async def console_process(
    addresses: Sequence[str], options: Sequence[str] | None
) -> AsyncIterator[None]:
    """The console of brokers without TLS and SASL, a process of its own that ends with this one;
    none if there are no options."""
    if options is None:
        yield
        return
    if not addresses:
        write_at_once(
            sys.stderr,
            "suwi: --console needs a listener without TLS and SASL; "
            "start `suwi console --command-config FILE` instead\n",
        )
        yield
        return
    command = (sys.executable, "-m", "suwi", "console", "--broker", ",".join(addresses), *options)
    process = await asyncio.create_subprocess_exec(*command, stdin=asyncio.subprocess.DEVNULL)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


async def _wait_for_stop_or_failure(stop: asyncio.Event, brokers: Sequence[Broker]) -> None:
    """Wait for a signal, or until all brokers have failed; the remaining ones keep serving."""

    async def watch() -> None:
        await asyncio.gather(*map(_report_failure, brokers))
        stop.set()

    watching = asyncio.create_task(watch())  # owner: this function
    await stop.wait()
    await cancel_and_wait(watching)


async def _report_failure(broker: Broker) -> None:
    failure = await broker.wait_failed()
    sys.stderr.write(f"suwi: broker {broker.node_id} has stopped: {failure}\n")


def _on_signals(act: Callable[[int], None]) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, act, number)


def _exit_at_once(signal_number: int) -> None:
    """Exit before the broker is ready, without a clean stop, since a thread may be checking logs.

    Everything done until then tolerates a crash at any point.
    """
    write_at_once(sys.stdout, "stopped before it was ready\n")
    os._exit(128 + signal_number)


def _warn_of_open_directories(env: Env, directories: Sequence[str]) -> None:
    """New directories are readable only by their owner; older versions made them public."""
    found = [path for path in dict.fromkeys(directories) if env.disk.is_dir(path)]
    is_open = [path for path in found if env.disk.is_open_to_others(path)]
    if is_open:
        log.warning(
            "other users can read the data, password hashes included: chmod 700",
            extra={"dirs": is_open},
        )


async def _start(brokers: Sequence[Broker]) -> None:
    try:
        await start_all(brokers)
    except CannotStartBroker as failure:
        broker, error = failure.broker, failure.__cause__
        assert error is not None
        if not isinstance(error, OSError):
            raise error from None
        # The broker's list has the listeners that are bound; the next one failed.
        specs = parse_listeners(broker.config)[len(broker.listeners) :]
        problem = bind_problem(specs[0], error) if specs else None
        raise ServeFailed(problem or _reason_of(error)) from error


async def _start_metrics(
    brokers: Sequence[Broker], stats: Sequence[NetStats | None], host: str, port: int
) -> "list[MetricsServer]":
    """Start a metrics server for each broker, on consecutive ports."""
    from suwi.broker.metrics import MetricsServer

    servers: list[MetricsServer] = []
    for broker, counts in zip(brokers, stats, strict=True):
        assert counts is not None
        server = MetricsServer(broker, counts, host, port + len(servers) if port else 0)
        try:
            await server.start()
        except OSError as error:
            await stop_all(brokers)
            problem = bind_problem(ListenerSpec("METRICS", host, server.port), error)
            raise ServeFailed(f"--metrics-port {port}: {problem or _reason_of(error)}") from error
        servers.append(server)
    return servers


def _print_startup_message(
    brokers: Sequence[Broker], metrics: "Sequence[MetricsServer]", took_s: float
) -> None:
    ids = ", ".join(str(broker.node_id) for broker in brokers)
    broker_text = f"broker {ids}" if len(brokers) == 1 else f"brokers {ids}"
    addresses = [
        f"{listener.name}://{address(listener.host, listener.port)}"
        for broker in brokers
        for listener in broker.listeners
    ]
    directories = [d.path for broker in brokers for d in broker.directories]
    metrics_urls = [f"http://{server.host}:{server.port}/metrics" for server in metrics]
    lines = [
        f"Suwi {__version__}, {broker_text}, ready in {took_s * 1000:.0f} ms",
        f"listening on  {', '.join(addresses)}",
        f"data in       {', '.join(directories)}",
        *([f"metrics at    {', '.join(metrics_urls)}"] if metrics_urls else []),
        "stop with     Ctrl-C",
        "",
    ]
    write_at_once(sys.stdout, "\n".join(lines))


def write_at_once(stream: TextIO | None, text: str) -> None:
    """Errors are ignored: the broker runs without a reader of its output."""
    if stream is not None:
        with contextlib.suppress(OSError):
            stream.write(text)
            stream.flush()


# -- the metadata store: a file in the first data directory, or ZooKeeper --------------------------


@asynccontextmanager
async def _open_stores(
    env: Env, directories: Sequence[str], configs: Sequence[BrokerConfig], *, adopt: bool
) -> AsyncIterator[list[MetadataStore]]:
    """One connection for each broker. Raises ServeFailed, BadConfig."""
    if configs[0].zookeeper_connect:
        if adopt:
            raise BadConfig("--adopt works without ZooKeeper only")
        if len(configs) > 1:
            raise BadConfig("--brokers: with ZooKeeper, each broker is a process of its own")
        _refuse_embedded_metadata(env, directories)
        store = await _open_zookeeper(env, configs[0])
        try:
            yield [store]
        finally:
            await store.close()
        return
    broker_dirs = [path for config in configs for path in config.log_dirs]
    embedded = await _open_embedded(env, directories, broker_dirs, adopt=adopt)
    try:
        yield [embedded.view() for _ in configs]
    finally:
        await embedded.close()


def _refuse_embedded_metadata(env: Env, directories: Sequence[str]) -> None:
    for directory in directories:
        if env.disk.exists(f"{directory}/{_METADATA_FILE}"):
            raise ServeFailed(
                f"{directory} holds the data of a broker without ZooKeeper; choose another "
                "directory with --data"
            )


async def _open_zookeeper(env: Env, config: BrokerConfig) -> MetadataStore:
    from suwi.metadata.zookeeper import ZookeeperStore
    from suwi.metadata.zookeeper_connection import AccessDenied
    from suwi.metadata.zookeeper_settings import zookeeper_settings

    settings = zookeeper_settings(config, env)
    limit_s = config.zookeeper_connection_timeout_ms / 1000 or None
    opening = asyncio.ensure_future(  # owner: this function
        ZookeeperStore.open(settings, connect_timeout_s=limit_s)
    )
    try:
        wait_s, waited_s = _FIRST_REPORT_S, 0.0
        while not (await asyncio.wait((opening,), timeout=wait_s))[0]:
            waited_s += wait_s
            write_at_once(
                sys.stderr, f"waiting for ZooKeeper at {settings.hosts} ({waited_s:.0f} s)\n"
            )
            wait_s = _REPORT_INTERVAL_S
        return opening.result()
    except (Unavailable, AccessDenied) as error:
        raise ServeFailed(str(error)) from None
    finally:
        opening.cancel()


async def _open_embedded(
    env: Env, directories: Sequence[str], broker_dirs: Sequence[str], *, adopt: bool
) -> EmbeddedStore:
    """The metadata store is in the first given directory; broker data is there or below it."""
    first = directories[0]
    refuse_other_layout(env, first, broker_dirs[0])
    path = f"{first}/{_METADATA_FILE}"
    try:
        make_lasting_dirs(env.disk, first)
        if not env.disk.exists(path) and not adopt:
            _refuse_data_without_metadata(env, [*directories, *broker_dirs])
        env.disk.open(path, create=True).close()  # for a clear error, which SQLite does not give
    except (FileExistsError, NotADirectoryError):
        raise ServeFailed(f"cannot keep data in {first}: it is not a directory") from None
    except OSError as error:
        raise ServeFailed(f"cannot keep data in {_reason_of(error)}") from error
    try:
        return await EmbeddedStore.open(path)
    except StoreInUse:
        raise directory_in_use(first) from None
    except (sqlite3.Error, ValueError) as error:
        # ValueError: written by another version of Suwi.
        raise ServeFailed(f"cannot use {path}: {error}") from error


def directory_in_use(directory: str) -> ServeFailed:
    return ServeFailed(
        f"{directory} is in use by another broker; stop it, or choose another directory with --data"
    )


def refuse_other_layout(env: Env, first: str, of_first_broker: str) -> None:
    """One broker and several use different directories: the existing data would not be found."""
    if first != of_first_broker and env.disk.exists(f"{first}/{META_PROPERTIES}"):
        raise ServeFailed(f"{first} holds the data of a single broker: start without --brokers")
    if first == of_first_broker and env.disk.exists(f"{first}/1/{META_PROPERTIES}"):
        raise ServeFailed(f"{first} holds the data of several brokers: start with --brokers")


def _refuse_data_without_metadata(env: Env, directories: Sequence[str]) -> None:
    """With new metadata, the existing partitions would be set aside as those of unknown topics."""
    for directory in directories:
        if not env.disk.is_dir(directory):
            continue
        found = env.disk.list_dir(directory)
        if _METADATA_FILE in found:
            raise ServeFailed(f"{directory} holds the metadata: name it first in log.dirs")
        partitions = [name for name in found if parse_partition_dir_name(name) is not None]
        if partitions:
            raise ServeFailed(
                f"{directory} holds partitions ({partitions[0]}) but no {_METADATA_FILE} describes "
                "them; restore the file, choose another directory, or, if Apache Kafka "
                "wrote them, adopt them with --adopt"
            )


def _reason_of(error: OSError) -> str:
    """The text of an OSError without errno: `data/x: Permission denied`."""
    reason = error.strerror or str(error)
    return f"{error.filename}: {reason}" if error.filename else reason

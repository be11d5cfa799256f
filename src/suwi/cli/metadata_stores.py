"""The metadata store of `suwi serve`: a file in the first data directory, or ZooKeeper.

`open_stores` gives each broker its connection to the store.
"""

import asyncio
import contextlib
import sqlite3
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from suwi.env import Env
from suwi.log.log_directory import make_lasting_dirs
from suwi.log.names import META_PROPERTIES, parse_partition_dir_name
from suwi.metadata.embedded import EmbeddedStore, StoreInUse
from suwi.metadata.store import MetadataStore, Unavailable
from suwi.model.broker_config import BrokerConfig
from suwi.model.config_kinds import BadConfig

_METADATA_FILE = "suwi-metadata.sqlite"
_FIRST_REPORT_S = 1.0
_REPORT_INTERVAL_S = 10.0


class CannotStart(Exception):
    """The reason why the broker cannot start, for the user."""


@asynccontextmanager
async def open_stores(
    env: Env, directories: Sequence[str], configs: Sequence[BrokerConfig], *, adopt: bool
) -> AsyncIterator[list[MetadataStore]]:
    """One connection for each broker. Raises CannotStart, BadConfig."""
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


# -- ZooKeeper -----------------------------------------------------------------------------------


def _refuse_embedded_metadata(env: Env, directories: Sequence[str]) -> None:
    for directory in directories:
        if env.disk.exists(f"{directory}/{_METADATA_FILE}"):
            raise CannotStart(
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
            _report(f"waiting for ZooKeeper at {settings.hosts} ({waited_s:.0f} s)\n")
            wait_s = _REPORT_INTERVAL_S
        return opening.result()
    except (Unavailable, AccessDenied) as error:
        raise CannotStart(str(error)) from None
    finally:
        opening.cancel()


def _report(text: str) -> None:
    with contextlib.suppress(OSError):
        sys.stderr.write(text)
        sys.stderr.flush()


# -- a file in the first data directory ----------------------------------------------------------


async def _open_embedded(
    env: Env, directories: Sequence[str], broker_dirs: Sequence[str], *, adopt: bool
) -> EmbeddedStore:
    """The metadata store is in the first given directory; broker data is there or below it."""
    first = directories[0]
    _refuse_other_layout(env, first, broker_dirs[0])
    path = f"{first}/{_METADATA_FILE}"
    try:
        make_lasting_dirs(env.disk, first)
        if not env.disk.exists(path) and not adopt:
            _refuse_data_without_metadata(env, [*directories, *broker_dirs])
        env.disk.open(path, create=True).close()  # for a clear error, which SQLite does not give
    except (FileExistsError, NotADirectoryError):
        raise CannotStart(f"cannot keep data in {first}: it is not a directory") from None
    except OSError as error:
        raise CannotStart(f"cannot keep data in {reason_of(error)}") from error
    try:
        return await EmbeddedStore.open(path)
    except StoreInUse:
        raise CannotStart(
            f"{first} is in use by another broker; stop it, or choose another directory with --data"
        ) from None
    except (sqlite3.Error, ValueError) as error:
        # ValueError: written by another version of Suwi.
        raise CannotStart(f"cannot use {path}: {error}") from error


def _refuse_other_layout(env: Env, first: str, of_first_broker: str) -> None:
    """One broker and several use different directories: the existing data would not be found."""
    if first != of_first_broker and env.disk.exists(f"{first}/{META_PROPERTIES}"):
        raise CannotStart(f"{first} holds the data of a single broker: start without --brokers")
    if first == of_first_broker and env.disk.exists(f"{first}/1/{META_PROPERTIES}"):
        raise CannotStart(f"{first} holds the data of several brokers: start with --brokers")


def _refuse_data_without_metadata(env: Env, directories: Sequence[str]) -> None:
    """With new metadata the existing partitions would be strays, and be set aside."""
    for directory in directories:
        if not env.disk.is_dir(directory):
            continue
        found = env.disk.list_dir(directory)
        if _METADATA_FILE in found:
            raise CannotStart(f"{directory} holds the metadata: name it first in log.dirs")
        partitions = [name for name in found if parse_partition_dir_name(name) is not None]
        if partitions:
            raise CannotStart(
                f"{directory} holds partitions ({partitions[0]}) but no {_METADATA_FILE} describes "
                "them; restore the file, choose another directory, or, if Apache Kafka "
                "wrote them, adopt them with --adopt"
            )


def reason_of(error: OSError) -> str:
    """The text of an OSError without errno: `data/x: Permission denied`."""
    reason = error.strerror or str(error)
    return f"{error.filename}: {reason}" if error.filename else reason

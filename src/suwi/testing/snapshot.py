"""The state of a test cluster at one point: how it is copied, and how brokers start from the copy.

`take` is called between two callbacks of the event loop, while the metadata store writes nothing,
and stops the threads of all brokers: a copy is what a `kill -9` of all of them at that moment would
leave. Of brokers in service it has in addition what a clean shutdown writes, so that no log has to
be recovered. Closed segments are linked, not copied (see `disk.py`).
`resume` starts brokers from a copy as if they had not been away: every leader, leader epoch and
in-sync set stays.
Invariant: no broker connects to a broker of the cluster that the copy was made of.
"""

import asyncio
import os
import shutil  # noqa: TID251 - the files of brokers that do not run
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import ExitStack
from typing import NamedTuple

from suwi.broker.broker import Broker
from suwi.controller.registration import decode_registration
from suwi.env.local_disk import LocalDisk
from suwi.log import names
from suwi.log.log_directory import LogDirectory
from suwi.metadata.embedded import EmbeddedStore
from suwi.metadata.image import LIVE, BrokerInfo, decode_broker, encode_broker
from suwi.metadata.metadata_follower import BROKERS
from suwi.metadata.store import Applied, Put
from suwi.model.errors import BrokerError
from suwi.model.ids import NodeId
from suwi.testing.node import BrokerNode

STORE = "suwi-metadata.sqlite"
_NO_BROKER = NodeId(0)
_LINKED = frozenset({*names.SEGMENT_FILES, names.SNAPSHOT})
_LEFT_OUT = (names.LOCK, names.DELETED, ".tmp")
_POLL_S = 0.005


class Point(NamedTuple):
    """What a copy of a cluster does not have in its files."""

    brokers: int
    settings: Mapping[str, str]
    session_timeout_s: float
    running: Collection[int]
    """The brokers that ran and were not paused."""
    boot_ids: Mapping[int, str]


# -- copying ---------------------------------------------------------------------------------------


def take(nodes: Collection[BrokerNode], directory: str) -> None:
    """Copy the files of all brokers, as they are now, to their places below `directory`."""
    # Before the drives are locked: a thread that writes a checkpoint holds another lock meanwhile.
    running = [node for node in nodes if node.in_service.is_set() and not node.is_frozen]
    clean = [node for node in running if node.machine.call(_write_all, node)]
    with ExitStack() as stopped:
        for node in nodes:
            stopped.enter_context(node.drive.lock)
        for node in nodes:
            copy = f"{directory}/{node.id}"
            copy_files(node.path, copy)
            if node in clean:
                LocalDisk().write_atomically(f"{copy}/{names.CLEAN_SHUTDOWN}", b"", sync=False)


def _write_all(node: BrokerNode) -> bool:
    """Write what a clean shutdown writes, and begin new segments. Returns whether that succeeded
    and the files are complete."""
    broker = node.broker
    assert broker is not None
    is_complete = True
    for partition in broker.replicas:
        if not partition.is_open:
            continue
        partition_log = partition.log_as_it_is
        if partition.is_closed or not partition_log.producers_are_known:
            is_complete = False  # The broker is stopping, or the log is being truncated.
            continue
        try:
            partition_log.roll(node.machine.clock.now_ms())
            partition_log.finish()
        except (OSError, BrokerError):
            is_complete = False  # The disk is full, for example.
    written = [_write_checkpoints(broker, directory) for directory in broker.directories]
    return is_complete and all(written)


def _write_checkpoints(broker: Broker, directory: LogDirectory) -> bool:
    checkpoints = directory.checkpoints
    watermarks = [
        (partition.partition, partition.watermark_as_it_is)
        for partition in broker.replicas
        if partition.is_open and directory.holds(partition.partition)
    ]
    jobs = (
        checkpoints.high_watermarks_job(watermarks),
        checkpoints.recovery_points_job(),
        checkpoints.start_offsets_job(),
        checkpoints.cleaner_offsets_job(),
    )
    is_recovered = directory.was_clean or all(map(directory.holds, directory.found_partitions()))
    return is_recovered and all(checkpoints.write(job) for job in jobs)


def copy_files(source: str, target: str, *, links: bool = True) -> None:
    """Copy the data directory of a broker. `links`: closed segments are linked, where the file
    system can do that."""
    for directory, subdirectories, found in os.walk(source):
        subdirectories[:] = [d for d in subdirectories if not d.endswith(names.DELETE_DIR)]
        copy = target + directory[len(source) :]
        LocalDisk().make_dirs(copy)
        active = max(names.offsets_by_suffix(found).get(names.LOG, ()), default=0)
        for name in found:
            if name.endswith(_LEFT_OUT):
                continue
            stem, suffix = name[:20], name[20:]
            is_closed = suffix in _LINKED and stem.isdigit() and int(stem) < active
            _copy_file(f"{directory}/{name}", f"{copy}/{name}", link=links and is_closed)


def _copy_file(source: str, target: str, *, link: bool) -> None:
    try:
        if link:
            return os.link(source, target)
    except OSError:
        pass  # Another file system, one without links, or too many of them.
    shutil.copy2(source, target)


# -- starting from a copy --------------------------------------------------------------------------


async def resume(
    store: EmbeddedStore,
    nodes: Collection[BrokerNode],
    start: Callable[[Iterable[BrokerNode]], Awaitable[None]],
) -> None:
    """Start brokers from a copy.

    The first one to register would be elected controller, find the others missing and elect itself
    leader of everything. So this function is the controller until all are registered, and writes
    their registrations without changing a partition. A broker that was fenced, or may have lost
    records, is left to the next controller.
    """
    view = store.view()
    controller = await (await view.open_session()).campaign(_NO_BROKER)

    async def write(brokers: Iterable[BrokerInfo]) -> None:
        puts = [Put(f"{LIVE}{broker.id}", encode_broker(broker)) for broker in brokers]
        if puts:
            written = await view.write(puts, controller_epoch=controller.epoch)
            assert isinstance(written, Applied), written

    entries = (await view.read_all(LIVE)).entries
    ids = {key: NodeId(int(key.removeprefix(LIVE))) for key in entries}
    known = {node: decode_broker(node, entries[key].value) for key, node in ids.items()}
    await write(broker._replace(endpoints=()) for broker in known.values())
    starting = asyncio.ensure_future(start(nodes))
    while not starting.done():
        registrations = await view.registrations(BROKERS)
        if len(registrations) == len(nodes):
            registered = [
                decode_registration(NodeId(int(key.removeprefix(BROKERS))), registration)
                for key, registration in registrations.items()
            ]
            await write(
                broker
                for broker, was_unclean in registered
                if not was_unclean and broker.id in known and not known[broker.id].fenced
            )
            break
        await asyncio.sleep(_POLL_S)
    await view.close()  # Its session ends, and the brokers elect a controller.
    await starting

"""Reads topic configurations from Apache Kafka's own metadata log.

Kafka keeps the metadata log (KRaft) in `__cluster_metadata-0` of its data directory: snapshots, and
the records written since. Only the records that create, configure and delete topics are read.
"""

import logging
from contextlib import closing

from suwi.env import Disk
from suwi.log import names
from suwi.log.batch_scan import scan_batches
from suwi.log.log_directory import LogDirectory
from suwi.model.errors import BrokerError
from suwi.model.ids import PartitionIndex, TopicPartition
from suwi.records.record import iter_records
from suwi.wire.errors import MalformedMessage
from suwi.wire.primitives import Reader

log = logging.getLogger(__name__)

_METADATA = TopicPartition("__cluster_metadata", PartitionIndex(0))
_SNAPSHOT = ".checkpoint"

_TOPIC, _CONFIG, _REMOVE_TOPIC = 2, 4, 9
_BEGIN, _END, _ABORT = 23, 24, 25
_RESOURCE_TOPIC = 2


def read_topic_configs(directory: LogDirectory) -> dict[str, dict[str, str]]:
    """Each topic in Kafka's metadata with its configuration; empty if there is no metadata log.

    Raises OSError.
    """
    path, disk = directory.dir_of(_METADATA), directory.disk
    if not disk.exists(path):
        return {}
    topics = _Topics()
    found = sorted(disk.list_dir(path))
    snapshots = [name for name in found if name.endswith(_SNAPSHOT)][-1:]
    logs = [name for name in found if names.parse_offset_name(name, names.LOG) is not None]
    start = -1
    try:
        for name in snapshots:
            _read_file(topics, disk, f"{path}/{name}", start)
            start = int(name.partition("-")[0])
        for name in logs:
            _read_file(topics, disk, f"{path}/{name}", start)
    except (BrokerError, MalformedMessage, ValueError) as error:
        # A partly written record was never valid; neither are those after it.
        log.warning("Kafka metadata log truncated", extra={"path": path, "reason": str(error)})
    return {name: topics.configs.get(name, {}) for name in topics.names.values()}


def _read_file(topics: "_Topics", disk: Disk, path: str, start: int) -> None:
    """Replay the records from offset `start` on."""
    with closing(disk.open(path)) as file:
        for _, header, batch in scan_batches(file, 0, file.size()):
            if header.is_control or header.last_offset < start:
                continue
            for record in iter_records(batch, header):
                if record.value is not None and record.offset >= start:
                    topics.replay(Reader(memoryview(record.value)))


class _Topics:
    """The topics and their configurations after the records replayed so far."""

    def __init__(self) -> None:
        self.names: dict[object, str] = {}
        self.configs: dict[str, dict[str, str]] = {}
        self._pending: list[tuple[int, Reader]] | None = None
        """Records of the open metadata transaction; None if there is none."""

    def replay(self, body: Reader) -> None:
        body.uvarint()  # The frame version.
        kind, version = body.uvarint(), body.uvarint()
        if kind == _BEGIN:
            self._pending = []
        elif kind in (_END, _ABORT):
            for pending in (self._pending or []) if kind == _END else []:
                self._replay(*pending)
            self._pending = None
        elif version:
            pass  # The record types read here exist in version 0 only.
        elif self._pending is not None:
            self._pending.append((kind, body))
        else:
            self._replay(kind, body)

    def _replay(self, kind: int, body: Reader) -> None:
        if kind == _TOPIC:
            name = body.string(True)
            self.names[body.uuid()] = name
        elif kind == _REMOVE_TOPIC:
            removed = self.names.pop(body.uuid(), None)
            if removed is not None:
                self.configs.pop(removed, None)
        elif kind == _CONFIG:
            resource_type = body.buffer[body.take(1)]
            topic, key, value = body.string(True), body.string(True), body.nullable_string(True)
            if resource_type == _RESOURCE_TOPIC:
                config = self.configs.setdefault(topic, {})
                config.pop(key, None)
                if value is not None:
                    config[key] = value

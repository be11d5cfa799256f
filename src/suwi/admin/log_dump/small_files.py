"""Reads producer snapshots, checkpoints, partition.metadata, meta.properties and similar files."""

import json
from collections.abc import Iterator

from suwi.admin.log_dump.findings import Damage, Entry, Findings, Note, open_file
from suwi.admin.text import printable, time_text
from suwi.log.producer_snapshot import DamagedSnapshot, decode_snapshot

_CHECKPOINT_VERSION = "0"


def _read(path: str) -> bytes:
    with open_file(path) as file:
        return file.read()


def read_snapshot(path: str) -> Findings:
    try:
        producers = decode_snapshot(_read(path))
    except DamagedSnapshot as error:
        yield Damage(str(error))
        return
    for producer in producers:
        last = producer.batches[-1] if producer.batches else None
        open_since = producer.txn_first_offset
        fields = {
            "producer_id": producer.producer_id,
            "producer_epoch": producer.epoch,
            "last_sequence": last.last_sequence if last else -1,
            "last_offset": last.last_offset if last else -1,
            "offset_delta": last.offset_delta if last else 0,
            "timestamp": producer.last_timestamp,
            "coordinator_epoch": producer.coordinator_epoch,
            "transaction_since": None if open_since < 0 else open_since,
        }
        shown = {
            "producer": producer.producer_id,
            "epoch": producer.epoch,
            "sequence": f"{last.first_sequence}..{last.last_sequence}" if last else None,
            "offset": f"{last.last_offset - last.offset_delta}..{last.last_offset}"
            if last
            else None,
            "time": time_text(producer.last_timestamp),
            "coordinator_epoch": producer.coordinator_epoch
            if producer.coordinator_epoch >= 0
            else None,
            "transaction_since": None if open_since < 0 else f"offset {open_since}",
        }
        yield Entry("producer", fields, shown)


def read_epochs(path: str) -> Findings:
    last = (-1, -1)
    for found in _checkpoint_lines(path):
        if not isinstance(found, str):
            yield found
            continue
        try:
            epoch, start = (int(word) for word in found.split(" "))
        except ValueError:
            yield Damage(f"{printable(found)!r} is not an epoch with its start offset")
            continue
        yield Entry("epoch", {"epoch": epoch, "start_offset": start})
        if epoch <= last[0] or start <= last[1]:
            yield Damage(f"epoch {epoch}: it is not greater than the entry before")
        last = (epoch, start)


def read_offsets(path: str) -> Findings:
    seen: set[tuple[str, int]] = set()
    for found in _checkpoint_lines(path):
        if not isinstance(found, str):
            yield found
            continue
        try:
            topic, partition_text, offset_text = found.split(" ")
            partition, offset = int(partition_text), int(offset_text)
        except ValueError:
            yield Damage(f"{printable(found)!r} is not a partition with its offset")
            continue
        yield Entry("offset", {"topic": topic, "partition": partition, "offset": offset})
        if (topic, partition) in seen:
            yield Damage(f"{topic} {partition}: it occurs twice")
        seen.add((topic, partition))


def _checkpoint_lines(path: str) -> Iterator[str | Damage]:
    """The lines after version and count; then the problems with these two."""
    text = _read(path).decode("utf-8", "replace")
    lines = text.split("\n")
    version = lines[0]
    if version != _CHECKPOINT_VERSION:
        yield Damage(f"unknown version {printable(version)!r}")
        return
    if not text.endswith("\n"):
        yield Damage("the last line has no line end: it may be truncated")
    entries = [line for line in lines[2:] if line]
    yield from entries
    count = lines[1] if len(lines) > 1 else ""
    if count != str(len(entries)):
        yield Damage(f"{printable(count)!r} entries are announced, {len(entries)} exist")


def read_partition_metadata(path: str) -> Findings:
    yield from _properties(path, ":", ("version", "topic_id"))


def read_meta_properties(path: str) -> Findings:
    found: set[str] = set()
    for finding in _properties(path, "=", ("version", "cluster.id")):
        if isinstance(finding, Entry):
            found.update(finding.fields)
        yield finding
    if not found & {"node.id", "broker.id"}:
        yield Damage("node.id is missing")


def _properties(path: str, separator: str, required: tuple[str, ...]) -> Findings:
    missing = set(required)
    for line in _read(path).decode("utf-8", "replace").splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        name, found, value = (part.strip() for part in line.partition(separator))
        if not found:
            yield Damage(f"{printable(line)!r} has no {separator!r}")
            continue
        missing.discard(name)
        yield Entry("property", {name: value}, {name: printable(value)})
    for name in sorted(missing):
        yield Damage(f"{name} is missing")


def read_clean_shutdown(path: str) -> Findings:
    yield Note("the broker stopped cleanly: its logs need no recovery")
    data = _read(path)
    if not data:
        return
    try:
        fields = json.loads(data)
    except ValueError:
        yield Damage("not JSON")
        return
    if isinstance(fields, dict):
        yield Entry("clean_shutdown", fields)

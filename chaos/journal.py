"""What the writers sent and which responses they got: their journals, and the records themselves.

A writer appends to its `Journal` as things happen; `read_journal` reads it.
Invariant: a record is journaled as sent before it is passed to the client.
"""

import struct
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

RECORD_BYTES = 100
_KEY_BYTES = 8
_ACK = struct.Struct("=qq")
"""The record, and its offset."""
_REPEATS = -(-RECORD_BYTES // _KEY_BYTES)

Key = int
"""Identifies a record: writer, partition and number, as they are in its value."""


def key_of(writer: int, partition: int, number: int) -> Key:
    return writer << 48 | partition << 32 | number


def partition_of(key: Key) -> int:
    return key >> 32 & 0xFFFF


def number_of(key: Key) -> int:
    return key & 0xFFFFFFFF


def value_of(writer: int, partition: int, number: int) -> bytes:
    return value_with(key_of(writer, partition, number))


def value_with(key: Key) -> bytes:
    """The key of the record, again and again."""
    return (key.to_bytes(_KEY_BYTES) * _REPEATS)[:RECORD_BYTES]


def key_in(value: bytes | None) -> Key | None:
    """None if no writer makes such a value."""
    key = int.from_bytes((value or b"")[:_KEY_BYTES])
    return key if value == value_with(key) else None


def partition_name(topic: str, partition: int) -> str:
    return f"{topic}-{partition}"


def tell(key: Key) -> str:
    return f"record {number_of(key)} of writer {key >> 48} to partition {partition_of(key)}"


class Journal:
    """One writer's. The acknowledgements are in a file of their own."""

    def __init__(self, path: Path, writer: int) -> None:
        self._file = path.open("w")
        self._acks = _acks_path(path).open("wb")
        self._writer = writer

    def sends(self, partition: int, end: int) -> None:
        """Sends the records of a partition below this number, those that it has not sent yet."""
        self._file.write(f"sends {partition} {end}\n")

    def acked(self, partition: int, number: int, offset: int) -> None:
        """`offset`: -1 if the writer did not get it."""
        self._acks.write(_ACK.pack(key_of(self._writer, partition, number), offset))

    def failed(self, partition: int, number: int, error: str) -> None:
        self._file.write(f"failed {partition} {number} {error}\n")

    def fatal(self, error: str) -> None:
        """The client failed as a whole."""
        self._file.write(f"fatal {error}\n")

    def close(self) -> None:
        """The writer has ended normally."""
        self._acks.close()
        self._file.write("end\n")
        self._file.close()


def _acks_path(journal: Path) -> Path:
    return journal.with_suffix(".acks")


@dataclass(slots=True)
class Notes:
    """What the journals of all writers contain."""

    sent: dict[tuple[int, int], int] = field(default_factory=dict)
    """How many records, by writer and partition: those with numbers below."""
    offsets: dict[Key, int] = field(default_factory=dict)
    """Of acknowledged records; -1 if the writer did not get it."""
    acked: Counter[str] = field(default_factory=Counter)
    """Records by writer."""
    failed: list[tuple[str, str, Key]] = field(default_factory=list)
    """Writer, error and record, of each that failed for its writer."""
    fatal: list[str] = field(default_factory=list)
    unanswered: Counter[str] = field(default_factory=Counter)
    """Records by writer without an acknowledgement or an error."""
    broken_off: list[str] = field(default_factory=list)
    """Writers whose journal has no end entry."""


def read_journal(path: Path, name: str, writer: int, notes: Notes) -> None:
    """Add one writer's journal. A record that failed may be stored or not."""
    has_ended, failed = False, 0
    sent: dict[int, int] = {}
    for line in path.read_text().splitlines():
        what, _, rest = line.partition(" ")
        if what == "end":
            has_ended = True
        elif what == "fatal":
            notes.fatal.append(f"{name}: {rest}")
        elif what == "sends":
            partition, end = map(int, rest.split())
            sent[partition] = end
        else:
            partition_text, number, error = rest.split(" ", 2)
            key = key_of(writer, int(partition_text), int(number))
            notes.failed.append((name, error, key))
            failed += 1
    content = _acks_path(path).read_bytes()
    count = len(content) // _ACK.size
    acked = dict(_ACK.iter_unpack(content[: count * _ACK.size]))
    assert len(acked) == count, f"{name} got two responses for one record"
    notes.sent.update({(writer, partition): end for partition, end in sent.items()})
    notes.offsets.update(acked)
    notes.acked[name] = len(acked)
    open_writes = sum(sent.values()) - len(acked) - failed
    if open_writes:
        notes.unanswered[name] = open_writes
    if not has_ended:
        notes.broken_off.append(name)

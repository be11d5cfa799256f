"""The journals of the writers, and their conversion to a `History` that can be checked.

A writer appends to its `Journal` as things happen; `read_journal` reads it.
Invariant: a record is journaled as sent before it is passed to the client.
"""

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from suwi.sim.history import History, Outcome


def value_of(writer: str, partition: int, number: int) -> bytes:
    """The record's value: writer, partition and number; some are longer than others."""
    return f"{writer} {partition} {number} ".encode() + b"." * (number * 37 % 200)


def partition_name(topic: str, partition: int) -> str:
    return f"{topic}-{partition}"


class Journal:
    def __init__(self, path: Path) -> None:
        self._file = path.open("w")

    def sent(self, partition: int, number: int) -> None:
        self._file.write(f"sent {partition} {number}\n")

    def acked(self, partition: int, number: int, offset: int) -> None:
        """`offset`: -1 if the writer did not get it."""
        self._file.write(f"acked {partition} {number} {offset}\n")

    def failed(self, partition: int, number: int, error: str) -> None:
        self._file.write(f"failed {partition} {number} {error}\n")

    def fatal(self, error: str) -> None:
        """The client failed as a whole."""
        self._file.write(f"fatal {error}\n")

    def close(self) -> None:
        """The writer has ended normally."""
        self._file.write("end\n")
        self._file.close()


@dataclass(slots=True)
class Notes:
    """What the journals contain beside the history."""

    acked: Counter[str] = field(default_factory=Counter)
    """Records by writer."""
    failed: list[tuple[str, str, bytes]] = field(default_factory=list)
    """Writer, error and value of each record that failed for its writer."""
    fatal: list[str] = field(default_factory=list)
    unanswered: Counter[str] = field(default_factory=Counter)
    """Records by writer without an acknowledgement or an error."""
    broken_off: list[str] = field(default_factory=list)
    """Writers whose journal has no end entry."""


def read_journal(path: Path, writer: str, topic: str, history: History, notes: Notes) -> None:
    """Add one writer's journal. A record that failed may be stored or not."""
    has_ended = False
    open_writes: set[bytes] = set()
    for line in path.read_text().splitlines():
        what, _, rest = line.partition(" ")
        if what == "end":
            has_ended = True
        elif what == "fatal":
            notes.fatal.append(f"{writer}: {rest}")
        else:
            partition, number, *told = rest.split(" ", 2)
            value = value_of(writer, int(partition), int(number))
            if what == "sent":
                name = partition_name(topic, int(partition))
                history.send(writer, name, value, idempotent=True)
                open_writes.add(value)
                continue
            open_writes.discard(value)
            if what == "acked":
                offset = int(told[0])
                history.writes[value].acked(offset if offset >= 0 else None)
                notes.acked[writer] += 1
            else:
                notes.failed.append((writer, told[0], value))
    if open_writes:
        notes.unanswered[writer] = len(open_writes)
    if not has_ended:
        notes.broken_off.append(writer)


def stored_in_spite_of_an_error(history: History, notes: Notes) -> int:
    """How many records are in the log though they failed for their writer."""
    stored = {value for log in history.finals.values() for value in log.records.values()}
    assert all(history.writes[value].outcome is Outcome.UNKNOWN for *_, value in notes.failed)
    return sum(value in stored for *_, value in notes.failed)

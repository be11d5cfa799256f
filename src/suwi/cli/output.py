"""The output of commands: tables and lines for people, JSON for scripts, errors on stderr.

Invariant: foreign bytes, such as those of records, reach a terminal only as printable characters.
"""

import asyncio
import io
import json
import os
import stat
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions
    from rich.table import Table

T = TypeVar("T")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
# Control characters could manipulate the terminal.
_ESCAPES = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0))} | {
    ord("\n"): "\\n",
    ord("\r"): "\\r",
    ord("\t"): "\\t",
}
_WIDTH_WITHOUT_TERMINAL = 10_000
NAMED_MAX = 5
"""How many of many things are shown by name."""


class Failure(Exception):
    """A command failed; the text gives the reason and what to do."""


class OutputFailed(Failure):
    """The output cannot be written."""


class OutputClosed(Exception):
    """The reader of the output has closed it: `suwi … | head`."""


def say(text: str = "") -> None:
    write(f"{text}\n".encode("utf-8", "backslashreplace"))


def write(data: bytes) -> None:
    with _output() as stdout:
        stdout.write(data)


def flush() -> None:
    if sys.stdout is not None:
        with _output() as stdout:
            stdout.flush()


@contextmanager
def _output() -> Iterator[BinaryIO]:
    if sys.stdout is None:
        raise OutputFailed("cannot write the output: it is closed")
    try:
        yield sys.stdout.buffer
    except BrokenPipeError:
        raise OutputClosed from None
    except OSError as error:
        raise OutputFailed(f"cannot write the output: {error.strerror or error}") from None


def is_terminal() -> bool:
    """Whether the output goes to a terminal."""
    return sys.stdout is not None and sys.stdout.isatty()


@asynccontextmanager
async def stop_when_output_closes() -> AsyncIterator[None]:
    """Cancels the body and raises `OutputClosed`, even while there is nothing to write."""
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None
    fd = _pipe()
    if fd is None:
        yield
        return
    is_closed = False

    def close() -> None:
        nonlocal is_closed
        is_closed = True
        task.cancel()

    loop.add_reader(fd, close)  # the write end becomes readable when the reader closes
    try:
        yield
    except asyncio.CancelledError:
        if not is_closed:
            raise
        task.uncancel()
        raise OutputClosed from None
    finally:
        loop.remove_reader(fd)


def _pipe() -> int | None:
    """The file descriptor of stdout, if it is a pipe."""
    if sys.stdout is None:
        return None
    try:
        fd = sys.stdout.fileno()
        return fd if stat.S_ISFIFO(os.fstat(fd).st_mode) else None
    except OSError:
        return None


def complain(text: str) -> None:
    sys.stderr.write(f"suwi: {text}\n")
    sys.stderr.flush()


def document(value: Any) -> None:
    """Print one JSON document."""
    say(json.dumps(value, indent=2, ensure_ascii=False))


def json_line(value: Any) -> None:
    """Print one JSON object of many, on one line."""
    say(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, numbers: str = "") -> None:
    """Print rows under headings; the columns named in `numbers` are right-aligned."""
    from rich.console import Console
    from rich.measure import Measurement

    drawn = drawn_table(columns, rows, numbers=numbers)
    shown = io.StringIO()
    console = Console(file=shown, force_terminal=is_terminal(), highlight=False, markup=False)
    if is_terminal():
        # A narrow terminal wraps the lines, but nothing is left out.
        console.width = max(console.width, Measurement.get(console, _wide(console), drawn).minimum)
    else:
        console.width = _WIDTH_WITHOUT_TERMINAL  # no terminal: do not wrap
    console.print(drawn)
    for line in shown.getvalue().splitlines():
        say(line.rstrip())


def drawn_table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], *, numbers: str = ""
) -> "Table":
    """The same table as a rich object, for callers that render it themselves."""
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for number, column in enumerate(columns):
        drawn.add_column(
            column,
            justify="right" if column in numbers.split() else "left",
            overflow="fold",
            no_wrap=number == 0,  # a wrapped name cannot be copied
            min_width=len(column),
        )
    for row in rows:
        drawn.add_row(*(Text(printable(str(cell))) for cell in row))
    return drawn


def _wide(console: "Console") -> "ConsoleOptions":
    return console.options.update(width=_WIDTH_WITHOUT_TERMINAL)


def show_each(items: Iterable[T], show: Callable[[T], None]) -> None:
    """Show one after the other, with an empty line between them."""
    for number, item in enumerate(items):
        if number:
            say()
        show(item)


def printable(text: str) -> str:
    return text.translate(_ESCAPES)


def bytes_text(data: bytes | None) -> str:
    """Bytes as text; invalid UTF-8 is escaped."""
    return "null" if data is None else data.decode("utf-8", "backslashreplace")


def size_text(size_bytes: int) -> str:
    size = float(size_bytes)
    for unit in _UNITS:
        if size < 1024 or unit == _UNITS[-1]:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError


def time_text(timestamp: int) -> str:
    """A record's timestamp, in UTC."""
    try:
        time = _EPOCH + timedelta(milliseconds=timestamp)
    except OverflowError:
        return f"{timestamp} ms"
    if timestamp < 0:
        return "none" if timestamp == -1 else f"{timestamp} ms"
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def duration_text(duration_ms: int) -> str:
    """About how long, in one unit."""
    if duration_ms < 1000:
        return f"{duration_ms} ms"
    for unit_ms, unit in ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min")):
        if duration_ms >= unit_ms:
            return f"{duration_ms / unit_ms:.1f} {unit}"
    return f"{duration_ms / 1000:.1f} s"


def count_text(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def names_text(names: Sequence[object]) -> str:
    """The first names, and how many more there are."""
    more = len(names) - NAMED_MAX
    named = ", ".join(map(str, names[:NAMED_MAX]))
    return f"{named} and {more} more" if more > 0 else named

"""The output of commands: tables and lines for people, JSON for scripts, errors and logs on stderr.

Invariant: foreign bytes, such as those of records, reach a terminal only as printable characters.
"""

import asyncio
import io
import json
import logging
import os
import stat
import sys
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn, TypeAlias, TypeVar

from suwi.admin.failure import Failure
from suwi.admin.json_documents import plain
from suwi.admin.text import printable
from suwi.model.ids import NodeId

if TYPE_CHECKING:
    from rich.table import Table

T = TypeVar("T")

_WIDTH_WITHOUT_TERMINAL = 10_000
LOG_LEVELS = ("debug", "info", "warning", "error")
_STANDARD_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class OutputFailed(Failure):
    """The output cannot be written."""


class OutputClosed(Exception):
    """The reader of the output has closed it: `suwi … | head`."""


def say(text: str = "") -> None:
    write(f"{text}\n".encode("utf-8", "backslashreplace"))


def say_at_once(text: str) -> None:
    """Print a line now: the next one may take a while."""
    say(text)
    flush()


def ignore(_: str) -> None:
    """In the place of `say_at_once`, if the output is JSON."""


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


def complain_of_silent(silent: Mapping[NodeId, str], what: str) -> int:
    """Brokers that do not respond, and why. Returns the exit code: what they have is not known."""
    for node, why in silent.items():
        complain(f"broker {node} has not reported its {what}: {why}")
    return int(bool(silent))


def document(value: Any) -> None:
    """Print one JSON document."""
    say(json.dumps(plain(value), indent=2, ensure_ascii=False))


def json_line(value: Any) -> None:
    """Print one JSON object of many, on one line."""
    say(json.dumps(plain(value), ensure_ascii=False, separators=(",", ":")))


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, numbers: str = "") -> None:
    """Print rows under headings; the columns named in `numbers` are right-aligned."""
    from rich.console import Console
    from rich.measure import Measurement

    drawn = _drawn_table(columns, rows, numbers)
    shown = io.StringIO()
    console = Console(file=shown, force_terminal=is_terminal(), highlight=False, markup=False)
    if is_terminal():
        # A narrow terminal wraps the lines, but nothing is left out.
        wide = console.options.update(width=_WIDTH_WITHOUT_TERMINAL)
        console.width = max(console.width, Measurement.get(console, wide, drawn).minimum)
    else:
        console.width = _WIDTH_WITHOUT_TERMINAL  # no terminal: do not wrap
    console.print(drawn)
    for line in shown.getvalue().splitlines():
        say(line.rstrip())


def _drawn_table(columns: Sequence[str], rows: Iterable[Sequence[object]], numbers: str) -> "Table":
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


def show_each(items: Iterable[T], show: Callable[[T], None]) -> None:
    """Show one after the other, with an empty line between them."""
    for number, item in enumerate(items):
        if number:
            say()
        show(item)


def or_dash(value: object) -> object:
    """A cell of a table; what is not known or does not exist is a dash."""
    return "-" if value is None else value


# -- output that is updated ------------------------------------------------------------------------

Part: TypeAlias = "str | tuple[str, Sequence[Sequence[object]], str]"
"""A line; or a table: its columns, its rows, and the columns that are numbers."""


def show_parts(parts: Iterable[Part]) -> None:
    for part in parts:
        if isinstance(part, str):
            say(printable(part))
        else:
            table(part[0].split(), part[1], numbers=part[2])


async def redraw(read: Callable[[], Awaitable[Iterable[Part]]], period_s: float) -> NoReturn:
    """Update one view on the terminal until Ctrl-C."""
    from rich.console import Console, Group
    from rich.live import Live
    from rich.text import Text

    console = Console(highlight=False, markup=False)
    with Live(console=console, auto_refresh=False, vertical_overflow="visible") as live:
        while True:
            drawn = [
                Text(printable(part))
                if isinstance(part, str)
                else _drawn_table(part[0].split(), part[1], part[2])
                for part in [*await read(), "", "Ctrl-C to stop"]
            ]
            live.update(Group(*drawn), refresh=True)
            await asyncio.sleep(period_s)


# -- log lines -------------------------------------------------------------------------------------


class FieldFormatter(logging.Formatter):
    """Time, level, logger and message, then the fields as key=value."""

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        facts = {k: value for k, value in vars(record).items() if k not in _STANDARD_FIELDS}
        fields_text = "".join(f" {key}={_word(value)}" for key, value in facts.items())
        name = record.name.removeprefix("suwi.")
        line = f"{time} {record.levelname.lower()} {name}: {record.getMessage()}{fields_text}"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


def _word(value: object) -> str:
    """A field's value as one word; quoted if it has spaces, quotes or unprintable characters."""
    if not isinstance(value, str):
        return json.dumps(value, default=str)
    is_word = value.isprintable() and not any(c in value for c in ' ="')
    return value if is_word and value else json.dumps(value)


def set_up_logging(level: str) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(FieldFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    if level.upper() != "DEBUG":
        # It has lines for every attempt; `metadata.zookeeper_connection` has one for every change.
        logging.getLogger("kazoo").setLevel(logging.ERROR)

"""The demo's output: headings, paragraphs, tables and checks, with or without a terminal."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

_WIDTH_MAX = 100


class CheckFailed(Exception):
    """A claim of the demo does not hold."""


class Stage:
    def __init__(self) -> None:
        self._console = Console(highlight=False, soft_wrap=False)
        self._console.width = min(self._console.width, _WIDTH_MAX)
        self._act = 0
        self._is_first = True
        self.checks = 0

    def act(self, title: str) -> None:
        self._act += 1
        self._console.print()
        self._console.rule(Text(f"{self._act}. {title}", style="bold cyan"), align="left")
        self._is_first = True

    def say(self, text: str) -> None:
        """A paragraph."""
        if not self._is_first:
            self._console.print()
        self._is_first = False
        self._console.print(Text(text))

    def quote(self, lines: Iterable[str], style: str = "green") -> None:
        """Text that is not the demo's own: a command, a file, a log."""
        for line in lines:
            self._indented(Text(line.rstrip("\n"), style=style))

    def table(self, rows: Iterable[Sequence[str]], numbers: Sequence[int] = ()) -> None:
        """Columns; those whose places are in `numbers` are set flush right, the last one wraps."""
        rows = list(rows)
        grid = Table.grid(padding=(0, 2))
        last = len(rows[0]) - 1
        for place in range(len(rows[0])):
            style = "" if place == last else "green"
            justify = "right" if place in numbers else "left"
            grid.add_column(justify=justify, style=style, no_wrap=place != last)
        for row in rows:
            grid.add_row(*(Text(cell) for cell in row))
        self._indented(grid)

    def _indented(self, content: RenderableType) -> None:
        self._console.print(Padding(content, (0, 0, 0, 4), expand=False))

    def check(self, is_so: bool, claim: str) -> None:
        """Show a claim that holds; end the demo at one that does not."""
        if not is_so:
            self._console.print(Text(f"NOT SO: {claim}", style="bold red"))
            raise CheckFailed(claim)
        self.checks += 1
        self._console.print(Text.assemble(("ok", "bold green"), f"  {claim}"))

    @contextmanager
    def progress(self) -> Iterator[Callable[[str], None]]:
        """A line that changes while the demo waits; nothing without a terminal."""
        if not self._console.is_terminal:
            yield lambda _: None
            return
        with self._console.status("") as status:
            yield lambda text: status.update(Text(text))

    def fail(self, reason: str) -> None:
        self._console.print(Text(f"The demo has failed: {reason}", style="bold red"))

"""Which pairs of mechanisms were active together over all seeds, as a table for the docs."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path  # noqa: TID251 - a page of the documentation

from simulation.mechanism_watch import Pair
from simulation.mechanisms import IMPOSSIBLE, MECHANISMS, PAIRS

BEGIN = "<!-- pairs: written by `python -m simulation --pairs` -->"
END = "<!-- end of pairs -->"
_NAMED_MAX = 20


class PairTable:
    def __init__(self) -> None:
        self.runs = 0
        self.counts: Counter[Pair] = Counter()

    def add(self, pairs: Iterable[Pair]) -> None:
        self.runs += 1
        self.counts.update(pairs)

    def missing(self) -> list[Pair]:
        """Possible ones that never met."""
        possible = ((one.name, other.name) for one, other in PAIRS)
        return [pair for pair in possible if not self.counts[pair]]

    def summary(self) -> str:
        missing = self.missing()
        text = (
            f"{len(PAIRS) - len(missing)} of {len(PAIRS)} pairs of mechanisms were active together"
        )
        named = "".join(f"\nMISSING PAIR: {one} and {other}" for one, other in missing[:_NAMED_MAX])
        more = len(missing) - _NAMED_MAX
        if more > 0:
            named += f"\nand {more} more: every pair takes some 2,000 seeds"
        return text + named

    def write(self, page: Path) -> None:
        """Replace what is between the marks of the page."""
        before, _, rest = page.read_text().partition(BEGIN)
        _, _, after = rest.partition(END)
        assert after, f"{page} has no place for the pairs"
        page.write_text(f"{before}{BEGIN}\n\n{self._text()}\n{END}{after}")

    def _text(self) -> str:
        rows = [
            f"After {self.runs} seeds: {self.summary().splitlines()[0]}.",
            *(f"**Missing: {one} and {other}.**" for one, other in self.missing()),
            *(
                f"Impossible: {' and '.join(sorted(two))}: {why}."
                for two, why in IMPOSSIBLE.items()
            ),
            "",
            "| | mechanism | kind | active when |",
            "|---|---|---|---|",
        ]
        rows += [
            f"| {number} | {each.name} | {each.kind.value} | {each.seen} |"
            for number, each in enumerate(MECHANISMS, start=1)
        ]
        columns = range(1, len(MECHANISMS))
        rows += [
            "",
            "In how many seeds the two were active at the same time, by their numbers:",
            "",
            f"| | {' | '.join(map(str, columns))} |",
            "|---" * (len(columns) + 1) + "|",
        ]
        for number, each in enumerate(MECHANISMS[1:], start=1):
            cells = [str(self.counts[other.name, each.name]) for other in MECHANISMS[:number]]
            cells += [""] * (len(columns) - len(cells))
            rows.append(f"| {number + 1} | {' | '.join(cells)} |")
        return "\n".join(rows) + "\n"

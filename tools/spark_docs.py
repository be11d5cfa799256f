"""Write the table of options into docs/spark-source.md: `make docs`."""

import sys
from pathlib import Path

from suwi.spark.option_table import KAFKA, TABLE, Option, Status, Use

TARGET = Path(__file__).parents[1] / "docs" / "spark-source.md"
_BEGIN = (
    "<!-- Written by tools/spark_docs.py from src/suwi/spark/option_table.py: `make docs`. -->\n"
)
_END = "<!-- end -->\n"


def render(page: str) -> str:
    """The page with the current table."""
    head, _, rest = page.partition(_BEGIN)
    _, _, tail = rest.partition(_END)
    return f"{head}{_BEGIN}\n{_tables()}\n{_END}{tail}"


def _tables() -> str:
    read = [option for option in TABLE if option.use & (Use.STREAM | Use.BATCH)]
    own = [option for option in read if not option.name.startswith(KAFKA)]
    kafka = [option for option in read if option.name.startswith(KAFKA)]
    lines = ["### Supported", "", "| option | default | for | |", "|---|---|---|---|"]
    lines += [
        f"| `{option.name}` | {_code(option.default)} | {_uses(option)} | {option.word} |"
        for option in (*own, *kafka)
        if option.status is Status.SUPPORTED
    ]
    for status, title in (
        (Status.NOTED, "Accepted, without an effect"),
        (Status.REFUSED, "Refused by name"),
    ):
        lines += ["", f"### {title}", "", "| option | |", "|---|---|"]
        lines += [
            f"| {names} | {word} |" for word, names in _by_word((*own, *kafka), status).items()
        ]
    return "\n".join(lines) + "\n"


def _by_word(options: tuple[Option, ...], status: Status) -> dict[str, str]:
    names: dict[str, list[str]] = {}
    for option in options:
        if option.status is status:
            names.setdefault(option.word, []).append(f"`{option.name}`")
    return {word: ", ".join(found) for word, found in names.items()}


def _uses(option: Option) -> str:
    found = option.use & (Use.STREAM | Use.BATCH)
    if found == Use.STREAM | Use.BATCH:
        return "streaming and batch"
    return "streaming" if Use.STREAM in found else "batch"


def _code(text: str) -> str:
    return f"`{text}`" if text and " " not in text else text


def main() -> None:
    TARGET.write_text(render(TARGET.read_text()))


if __name__ == "__main__":
    sys.exit(main())

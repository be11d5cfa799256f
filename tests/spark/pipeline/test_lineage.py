"""Several pipelines: what depends on what, in which order they run, and a picture of it."""

import re
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

pytest.importorskip("yaml")

from suwi.spark.pipeline.plan import check_together, in_order, lineage_lines, lineage_svg
from suwi.spark.pipeline.reading import read_pipeline
from suwi.spark.pipeline.spec import Pipeline

MEDALLION = Path(__file__).parents[3] / "examples" / "medallion"
TOPICS = """\
name: {name}
source: {{servers: "127.0.0.1:9092", {reads}}}
decode: raw
sink: {{topic: {writes}}}
checkpoint: /lake/{name}
"""


def medallion() -> list[Pipeline]:
    return [read_pipeline(str(file), {}) for file in sorted(MEDALLION.glob("*.yaml"))]


def topics(folder: Path, **given: tuple[str, str]) -> list[Pipeline]:
    for name, (reads, writes) in given.items():
        text = TOPICS.format(name=name, reads=reads, writes=writes)
        (folder / f"{name}.yaml").write_text(text)
    return [read_pipeline(str(folder / f"{name}.yaml"), {}) for name in given]


def test_who_writes_a_table_runs_before_who_reads_it() -> None:
    found = [one.name for one in in_order(medallion())]
    assert found[:2] == ["medallion-bronze", "medallion-silver"]
    assert set(found[2:]) == {"medallion-gold", "medallion-paid", "medallion-countries"}
    assert found.index("medallion-paid") < found.index("medallion-countries")
    assert check_together(medallion()) == []


def test_topics_and_patterns_of_topics_are_dependencies_too(tmp_path: Path) -> None:
    found = topics(
        tmp_path,
        last=("pattern: clean-.*", "end"),
        middle=("topics: [raw, other]", "clean-orders"),
        first=("topics: input", "raw"),
    )
    assert [one.name for one in in_order(found)] == ["first", "middle", "last"]


def test_what_cannot_run_together_is_named(tmp_path: Path) -> None:
    circle = topics(tmp_path, one=("topics: a", "b"), two=("topics: b", "a"))
    (problem,) = check_together(circle)
    assert problem.startswith("they read what each other writes: ")
    assert "the name 'one' is that of two pipelines" in check_together([circle[0], circle[0]])
    text = (tmp_path / "one.yaml").read_text()
    setting = "spark: {spark.driver.memory: %s, spark.sql.shuffle.partitions: %s}\n"
    for name in ("one", "three"):
        size = len(name)
        changed = text.replace("one", name).replace("topic: b", f"topic: {name}")
        (tmp_path / f"{name}.yaml").write_text(changed + setting % (f"{size}g", size))
    files = [read_pipeline(str(tmp_path / f"{name}.yaml"), {}) for name in ("one", "three")]
    assert check_together(files) == [
        "spark: 'spark.driver.memory' differs between the files, and a session has it once"
    ]


def test_the_lineage_in_words() -> None:
    lines = list(lineage_lines(medallion()))
    assert lines[:6] == [
        "medallion-bronze",
        "  reads   records: topic orders, json",
        "  then    sql",
        "  writes  sink: /tmp/medallion/bronze",
        "  writes  dead_letters: topic orders-bad, what cannot be decoded",
        "medallion-silver, after medallion-bronze",
    ]
    assert "  joins   products: /tmp/medallion/products, read anew for each batch" in lines


def test_the_lineage_as_a_picture() -> None:
    picture = ElementTree.fromstring(lineage_svg(medallion()))
    texts = [one.text for one in picture.iter("{http://www.w3.org/2000/svg}text")]
    assert len(texts) == len(set(texts)) == 15
    boxes = [one.attrib for one in picture.iter("{http://www.w3.org/2000/svg}rect")]
    left = {text: int(box["x"]) for text, box in zip(texts, boxes, strict=True)}
    order = ["topic orders", "medallion-bronze", "/tmp/medallion/bronze", "medallion-silver"]
    assert sorted(order, key=lambda text: left[text]) == order
    assert len(list(picture.iter("{http://www.w3.org/2000/svg}path"))) == 14


def test_no_edge_of_the_picture_runs_behind_a_box(tmp_path: Path) -> None:
    """Earlier the one from products to silver ran behind bronze, as if it were written by it."""
    late = (
        "name: late\nsource: {delta: /tmp/medallion/bronze}\ntables: {gold: /tmp/medallion/gold}\n"
    )
    late += "sql: SELECT * FROM records JOIN gold\nsink: {delta: /x}\ncheckpoint: /y\n"
    (tmp_path / "late.yaml").write_text(late)
    late_one = read_pipeline(str(tmp_path / "late.yaml"), {})
    picture = ElementTree.fromstring(lineage_svg([*medallion(), late_one]))
    boxes = [
        (int(one.attrib["x"]), int(one.attrib["y"]), int(one.attrib["width"]))
        for one in picture.iter("{http://www.w3.org/2000/svg}rect")
    ]
    for path in picture.iter("{http://www.w3.org/2000/svg}path"):
        for x, y in _points(path.attrib["d"]):
            assert not [b for b in boxes if b[0] < x < b[0] + b[2] and b[1] < y < b[1] + 30]


def _points(path: str) -> Iterator[tuple[float, float]]:
    """Some of those that it runs through."""
    x = y = 0.0
    for kind, given in re.findall(r"([MCH])([-\d ]+)", path):
        numbers = [float(one) for one in given.split()]
        if kind == "M":
            x, y = numbers
        elif kind == "H":
            yield from ((x + (numbers[0] - x) * at / 20, y) for at in range(21))
            x = numbers[0]
        else:
            half, _, _, _, to_x, to_y = numbers
            for t in (at / 20 for at in range(21)):
                a, b, c, d = (1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t * t * (1 - t), t**3
                yield a * x + (b + c) * half + d * to_x, (a + b) * y + (c + d) * to_y
            x, y = to_x, to_y

"""Several pipelines: what depends on what, in which order they run, and a picture of it."""

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
    assert found == ["medallion-bronze", "medallion-silver", "medallion-gold"]
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
    assert "  joins   products: /tmp/medallion/products, read anew when the query starts" in lines


def test_the_lineage_as_a_picture() -> None:
    picture = ElementTree.fromstring(lineage_svg(medallion()))
    texts = [one.text for one in picture.iter("{http://www.w3.org/2000/svg}text")]
    assert len(texts) == len(set(texts)) == 9
    boxes = [one.attrib for one in picture.iter("{http://www.w3.org/2000/svg}rect")]
    left = {text: int(box["x"]) for text, box in zip(texts, boxes, strict=True)}
    order = ["topic orders", "medallion-bronze", "/tmp/medallion/bronze", "medallion-silver"]
    assert sorted(order, key=lambda text: left[text]) == order
    assert len(list(picture.iter("{http://www.w3.org/2000/svg}path"))) == 8

"""A pipeline that is started again: after more partitions, lost records, another name."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("yaml", reason="PyYAML is not installed: pip install .[spark]")
pytest.importorskip("pyspark", reason="PySpark is not installed: pip install .[spark]")
pytest.importorskip("deltalake", reason="deltalake is not installed: pip install .[spark]")

from deltalake import DeltaTable

from suwi.spark.pipeline.program import load_program
from suwi.spark.pipeline.reading import read_pipeline
from suwi.spark.pipeline.running import Runner, RunSettings, lags_of
from suwi.spark.pipeline.steps import Variation
from tests.broker_process import BrokerProcess
from tests.spark.topics import add_partitions, delete_before, fill, make_topic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PIPELINE = """\
name: {name}
source:
  servers: {broker}
  topics: {topic}
  options:
    failOnDataLoss: {fail}
decode: string
sink:
  delta: {folder}/table
checkpoint: {folder}/{checkpoint}
dead_letters: drop
"""


@pytest.mark.slow
def test_a_pipeline_goes_on_whatever_happened_meanwhile(
    spark: "SparkSession", broker: BrokerProcess, tmp_path: Path
) -> None:
    topic = make_topic(broker.address)
    said: list[str] = []

    def run(name: str = "p", *, fail: bool = True, checkpoint: str = "checkpoint") -> int:
        text = PIPELINE.format(
            name=name,
            broker=broker.address,
            topic=topic,
            fail=str(fail).lower(),
            folder=tmp_path,
            checkpoint=checkpoint,
        )
        (tmp_path / "pipeline.yaml").write_text(text)
        pipeline = read_pipeline(str(tmp_path / "pipeline.yaml"))
        program = load_program(pipeline, Variation(once=True))
        settings = RunSettings(retries=5, look_every_s=0.05)
        runner = Runner(pipeline, program, spark, lags_of(pipeline), settings, say=said.append)
        code = asyncio.run(runner.run())
        said.extend(filter(None, [runner.reason]))  # The command says it last.
        return code

    def values() -> str:
        rows = DeltaTable(str(tmp_path / "table")).to_pyarrow_table().to_pylist()
        return "".join(sorted(row["value"] for row in rows))

    fill(broker.address, topic, [b"a", b"b"])
    assert run() == 0, said
    assert values() == "ab"

    # The topic has more partitions, and the query another name: the checkpoint says who it is.
    add_partitions(broker.address, topic, 2)
    fill(broker.address, topic, [b"c"], partition=1)
    fill(broker.address, topic, [b"d"])
    assert run("renamed") == 0, said
    assert values() == "abcd"

    # Records are gone before they were read.
    fill(broker.address, topic, [b"e", b"f"])
    delete_before(broker.address, topic, 4)
    said.clear()
    assert run() == 4
    (why,) = said
    assert f"{topic}-0" in why
    assert "3" in why
    assert values() == "abcd"
    assert run(fail=False) == 0, said
    assert values() == "abcdf"

    # With a new checkpoint it is another query: all that is there is written again.
    assert run(checkpoint="new") == 0, said
    assert values() == "abccdff"

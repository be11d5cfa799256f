"""A pipeline as Python: it compiles, it holds no secret, and says what the file says."""

from pathlib import Path

import pytest

pytest.importorskip("yaml")

from suwi.spark.pipeline.reading import read_pipeline
from suwi.spark.pipeline.script import script
from suwi.spark.pipeline.steps import Between, Variation
from suwi.spark.pipeline.text import literal, parse_text


def shown(folder: Path, text: str, variation: Variation | None = None, **environ: str) -> str:
    (folder / "pipeline.yaml").write_text(text)
    found = script(read_pipeline(str(folder / "pipeline.yaml"), environ), variation)
    compile(found, "pipeline.py", "exec")
    return found


JAAS = 'x.PlainLoginModule required username="u" password="hunter2";'
ORDERS = """\
name: orders
source:
  servers: "${KAFKA:-localhost:9092}"
  topics: orders
  options:
    kafka.security.protocol: SASL_PLAINTEXT
    kafka.sasl.mechanism: PLAIN
    kafka.sasl.jaas.config: ${JAAS}
decode:
  json: |
    id BIGINT NOT NULL,
    at TIMESTAMP
watermark: {column: at, delay: 10 minutes}
deduplicate: id
sql: |
  SELECT id, date(at) AS day
  FROM records
sink:
  delta: /lake/orders
  partition_by: day
dead_letters:
  topic: orders-bad
checkpoint: /lake/checkpoint
"""


def test_a_pipeline_reads_like_python_that_somebody_wrote(tmp_path: Path) -> None:
    assert (
        shown(tmp_path, ORDERS, JAAS=JAAS)
        == '''\
"""The pipeline orders, as `suwi pipeline show` writes it."""

import os

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from suwi.spark import dead_letter, decode, open_session, read_topics, register, to_delta


def build(spark: SparkSession) -> tuple[DataFrame, DataFrame]:
    rows = read_topics(
        spark,
        os.environ.get("KAFKA", "localhost:9092"),
        "orders",
        starting="earliest",
        options={
            "kafka.security.protocol": "SASL_PLAINTEXT",
            "kafka.sasl.mechanism": "PLAIN",
            "kafka.sasl.jaas.config": os.environ["JAAS"],
        },
    )
    good, bad = decode(
        rows,
        json="""\\
id BIGINT NOT NULL,
at TIMESTAMP
""",
    )
    good = good.withWatermark("at", "10 minutes")
    good = good.dropDuplicatesWithinWatermark(["id"])
    good.createOrReplaceTempView("records")
    good = spark.sql("""\\
SELECT id, date(at) AS day
FROM records
""")
    return good, bad


def start(spark: SparkSession) -> list[StreamingQuery | None]:
    good, bad = build(spark)
    return [
        to_delta(
            good,
            "/lake/orders",
            partition_by=["day"],
            checkpoint="/lake/checkpoint",
            name="orders",
        ),
        dead_letter(
            bad,
            os.environ.get("KAFKA", "localhost:9092"),
            "orders-bad",
            pipeline="orders",
            options={
                "kafka.security.protocol": "SASL_PLAINTEXT",
                "kafka.sasl.mechanism": "PLAIN",
                "kafka.sasl.jaas.config": os.environ["JAAS"],
            },
            checkpoint="/lake/checkpoint/dead-letters",
            name="orders-dead-letters",
        ),
    ]


if __name__ == "__main__":
    spark = open_session("orders")
    register(spark)
    for query in start(spark):
        if query is not None:
            query.awaitTermination()
'''
    )


def test_a_run_once_takes_what_there_is(tmp_path: Path) -> None:
    text = shown(tmp_path, ORDERS, Variation(once=True), JAAS=JAAS)
    assert text.count('trigger={"availableNow": True}') == 2


def test_from_the_beginning_goes_before_what_the_file_says(tmp_path: Path) -> None:
    file = ORDERS.replace("  topics: orders\n", "  topics: orders\n  from: latest\n")
    assert 'starting="latest"' in shown(tmp_path, file, JAAS=JAAS)
    text = shown(tmp_path, file, Variation(from_beginning=True), JAAS=JAAS)
    assert 'starting="earliest"' in text
    assert "latest" not in text


def test_a_range_of_time_is_a_batch_that_is_written_once(tmp_path: Path) -> None:
    between = Between('{"orders":{"0":1}}', '{"orders":{"0":2}}', ("orders:1000-2000", 1))
    text = shown(tmp_path, ORDERS, Variation(between=between), JAAS=JAAS)
    assert "streaming=False" in text
    assert "starting=" in text
    assert '"endingOffsets": ' in text
    assert 'txn=("orders:1000-2000", 1)' in text
    assert "overwrite" not in text
    replaced = Between("{}", "{}", ("orders:1-2", 3), {"sink": "_offset < 2"})
    text = shown(tmp_path, ORDERS, Variation(between=replaced), JAAS=JAAS)
    assert 'mode="overwrite"' in text
    assert 'replace_where="_offset < 2"' in text
    assert "dropDuplicates([" in text  # the streaming one is not for batches
    assert "checkpoint" not in text


def test_transactions_are_for_a_stream_and_not_for_a_range_of_time(tmp_path: Path) -> None:
    sink = "  topic: out\n  options: {transactionalIdPrefix: p}\n"
    file = ORDERS.replace("  delta: /lake/orders\n  partition_by: day\n", sink)
    assert '"transactionalIdPrefix": "p"' in shown(tmp_path, file, JAAS=JAAS)
    batch = shown(tmp_path, file, Variation(between=Between("{}", "{}", ("o", 1))), JAAS=JAAS)
    assert "transactionalIdPrefix" not in batch


def test_secrets_come_from_files_when_it_runs(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("hunter2\n")
    file = f"""\
name: orders
source: {{servers: "h:1", pattern: "o.*"}}
decode:
  avro: {{type: record, name: R, fields: [{{name: id, type: long}}]}}
  registry: {{url: "http://r", user: u, password: "${{file:{tmp_path / "password"}}}"}}
  nulls: drop
python: shop.orders:clean
sink: {{topic: "*", mode: update}}
checkpoint: /x
dead_letters: drop
spark: {{spark.sql.shuffle.partitions: 4}}
trigger: 5 seconds
"""
    text = shown(tmp_path, file)
    assert "hunter2" not in text
    assert f'registry=Registry("http://r", user="u", password=secret_file("{tmp_path}' in text
    assert "from suwi.spark.pipeline.text import secret_file" in text
    assert "from shop.orders import clean" in text
    assert "good = clean(good)" in text
    assert 'pattern="o.*"' in text
    assert 'open_session("orders", {"spark.sql.shuffle.partitions": "4"})' in text
    assert 'trigger={"processingTime": "5 seconds"}' in text
    assert (
        """avro={'type': 'record', 'name': 'R', 'fields': [{'name': 'id', 'type': 'long'}]}"""
        in text
    )


def test_parquet_is_sparks_own_sink(tmp_path: Path) -> None:
    file = ORDERS.replace("delta:", "parquet:")
    text = shown(tmp_path, file, JAAS=JAAS)
    assert """to_parquet(\n            good,\n            "/lake/orders",\n""" in text
    assert 'partition_by=["day"]' in text
    compile(
        shown(tmp_path, file, Variation(between=Between("{}", "{}", ("o", 1))), JAAS=JAAS),
        "p.py",
        "exec",
    )


@pytest.mark.parametrize(
    "text", ["", "a", "it's", 'say "x"', "a\nb", "a\\b\n", '"""\n', "é\t", "'\""]
)
def test_a_literal_means_what_it_was_made_from(text: str) -> None:
    assert eval(literal(text)) == text
    assert eval(parse_text(text, 1).python()) == text


def test_a_dollar_can_be_meant_as_such() -> None:
    assert parse_text("$${HOME} costs $5 {x}", 1).resolve({}, None) == "${HOME} costs $5 {x}"  # type: ignore[arg-type]


def test_the_catalog_of_an_iceberg_table_is_shown_without_its_secrets(tmp_path: Path) -> None:
    sink = """\
  iceberg: shop.orders
  catalog: {uri: "https://lake.example", token: "${TOKEN}"}
  partition_by: [day(day), "bucket(4, id)"]
"""
    text = ORDERS.replace("  delta: /lake/orders\n  partition_by: day\n", sink)
    found = shown(tmp_path, text, JAAS=JAAS, TOKEN="hunter2")
    assert "hunter2" not in found
    assert '"token": os.environ["TOKEN"]' in found
    assert 'partition_by=["day(day)", "bucket(4, id)"]' in found
    outputs = text.replace("sink:\n", "outputs:\n  all:\n").replace("\n  ", "\n    ")
    outputs = outputs.replace("outputs:\n    all:", "outputs:\n  all:")
    assert "iceberg_output(" in shown(tmp_path, outputs, JAAS=JAAS, TOKEN="hunter2")

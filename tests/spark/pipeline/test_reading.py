"""`pipeline.yaml`: understood, or every mistake in it named with its line."""

import re
from pathlib import Path

import pytest

pytest.importorskip("yaml")

from suwi.env import local_env
from suwi.spark.pipeline.nodes import BadPipeline
from suwi.spark.pipeline.reading import read_pipeline
from suwi.spark.pipeline.spec import (
    DeltaSpec,
    IcebergSpec,
    ParquetSpec,
    Pipeline,
    TableSource,
    TopicSource,
    TopicSpec,
    sink_text,
)

MINIMAL = """\
name: orders
source:
  servers: 127.0.0.1:9092
  topics: orders
decode: string
sink:
  delta: /lake/orders
checkpoint: /lake/checkpoint
dead_letters: drop
"""


NO_PORT = "has no port: give HOST:PORT, like localhost:9092"
MEANT = "did you mean"
NOT_A_MAPPING = "mapping values are not allowed here"
OPEN_QUOTE = "while scanning a quoted scalar found unexpected end of stream"
IN_QUOTES = "text that contains ': ' must be in quotes"
ONE_COLUMN = "keys of one section begin in one column"
SINK_KEYS = (
    "delta, iceberg, topic, parquet, mode, partition_by, merge_schema, keys, order_by, "
    "delete_when, target_file_size, compression, compact_every_s, storage_options, warehouse, "
    "catalog, servers, options"
)
ICEBERG_KEYS = "warehouse, catalog, partition_by, merge_schema, target_file_size, compression"


def read(folder: Path, text: str, **environ: str) -> Pipeline:
    (folder / "pipeline.yaml").write_text(text)
    return read_pipeline(str(folder / "pipeline.yaml"), environ)


def mistakes(folder: Path, text: str, **environ: str) -> list[str]:
    """As `line: text`."""
    with pytest.raises(BadPipeline) as refused:
        read(folder, text, **environ)
    return [f"{line}: {text}" for line, text in refused.value.problems]


def group_of(pipeline: Pipeline, **environ: str) -> str | None:
    return pipeline.group and pipeline.group.resolve(environ, local_env().disk)


def test_little_needs_to_be_said(tmp_path: Path) -> None:
    pipeline = read(tmp_path, MINIMAL)
    assert pipeline.name == group_of(pipeline) == "orders"
    assert isinstance(pipeline.source, TopicSource)
    assert [topic.shown for topic in pipeline.source.topics] == ["orders"]
    assert isinstance(pipeline.sinks["sink"], DeltaSpec)
    decode = pipeline.inputs["records"].decode
    assert decode is not None
    assert decode.kind == "string"


def test_everything_can_be_said(tmp_path: Path) -> None:
    pipeline = read(
        tmp_path,
        """\
name: orders
source:
  servers: [::1]:9092
  pattern: orders-.*
  from: latest
  options:
    kafka.isolation.level: read_committed
    maxOffsetsPerTrigger: 1000
decode:
  avro: true
  registry: {url: "http://127.0.0.1:8081", user: me, password: "${PASSWORD}"}
  subject: orders-value
  nulls: keep
watermark: {column: at, delay: 10 minutes}
deduplicate: [id, shop]
python: shop.orders:clean
sink:
  delta: /lake/orders
  mode: update
  keys: [id]
  order_by: at
  delete_when: source.op = 'd'
  partition_by: day
  merge_schema: true
  target_file_size: 64mb
  compact_every_s: 600
  storage_options: {AWS_REGION: eu-west-1}
dead_letters:
  servers: other:9092
  topic: orders-bad
checkpoint: /lake/checkpoint
trigger: 10 seconds
group: false
spark:
  spark.sql.shuffle.partitions: 4
""".replace("[::1]:9092", '"[::1]:9092"'),
        PASSWORD="hunter2",
    )
    assert pipeline.group is None
    assert pipeline.python is not None
    assert (pipeline.python.module, pipeline.python.name) == ("shop.orders", "clean")
    sink = pipeline.sinks["sink"]
    assert isinstance(sink, DeltaSpec)
    assert (sink.mode, sink.compact_every_s) == ("update", 600)
    assert pipeline.dead_letters is not None
    assert pipeline.dead_letters.servers.shown == "other:9092"
    assert "hunter2" not in repr(pipeline)


def test_the_other_sinks(tmp_path: Path) -> None:
    assert isinstance(
        read(tmp_path, MINIMAL.replace("delta: /lake/orders", "parquet: /lake")).sinks["sink"],
        ParquetSpec,
    )
    sink = read(tmp_path, MINIMAL.replace("delta: /lake/orders", "topic: clean")).sinks["sink"]
    assert isinstance(sink, TopicSpec)
    assert sink.servers.shown == "127.0.0.1:9092"  # the source's, as nothing else is said
    iceberg = MINIMAL.replace("delta: /lake/orders", "iceberg: shop.orders\n  warehouse: /lake")
    sink = read(tmp_path, iceberg).sinks["sink"]
    assert isinstance(sink, IcebergSpec)
    assert sink_text(sink) == "shop.orders"


def test_the_subject_of_a_single_topic_is_known(tmp_path: Path) -> None:
    decode = 'decode: {avro: true, registry: "http://127.0.0.1:8081"}'
    text = MINIMAL.replace("decode: string", decode)
    found = read(tmp_path, text).inputs["records"].decode
    assert found is not None
    assert found.subject is not None
    assert found.subject.shown == "orders-value"
    (problem,) = mistakes(tmp_path, text.replace("topics: orders", "topics: [a, b]"))
    assert problem.endswith("give registry and subject")


def test_a_rule_without_an_action_warns(tmp_path: Path) -> None:
    rules = read(tmp_path, MINIMAL + "expect: {small: id < 5, b: {condition: x}}\n").expect
    assert {name: (rule.condition.shown, rule.action) for name, rule in rules.items()} == {
        "small": ("id < 5", "warn"),
        "b": ("x", "warn"),
    }


EVEN = "expect:\n  even: {condition: id % 2 = 0, otherwise: dead_letters}\n"
TABLE = f"""\
name: silver
source: {{delta: /lake/bronze}}
sink: {{delta: /lake/silver}}
checkpoint: /lake/_checkpoints/silver
{EVEN}\
dead_letters: {{topic: odd, servers: "127.0.0.1:9092"}}
"""


def test_rows_of_tables_and_raw_records_may_go_to_dead_letters_by_a_rule(tmp_path: Path) -> None:
    """Earlier `dead_letters` was refused there, so that no rule could send rows away."""
    pipeline = read(tmp_path, TABLE)
    assert pipeline.dead_letters is not None
    assert not pipeline.dead_letter_query
    raw = MINIMAL.replace("string", "raw").replace("drop", "{topic: odd}") + EVEN
    assert not read(tmp_path, raw).dead_letter_query
    assert mistakes(tmp_path, TABLE.replace(', servers: "127.0.0.1:9092"', "")) == [
        "7: 'servers' is missing: the source is a table"
    ]


def test_mode_complete_would_send_dead_letters_again_with_every_batch(tmp_path: Path) -> None:
    text = TABLE.replace("/lake/silver}", "/lake/silver, mode: complete}")
    (problem,) = mistakes(tmp_path, text)
    assert problem.startswith("6: expect.even: with mode complete every batch would send")


def test_a_variable_with_a_default_is_shown_resolved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = MINIMAL.replace("/lake/orders", "${LAKE:-/lake}/orders-${SECRET}")
    sink = read(tmp_path, text, SECRET="hunter2").sinks["sink"]
    assert sink_text(sink) == "/lake/orders-${SECRET}"
    monkeypatch.setenv("LAKE", "/other")
    assert sink_text(sink) == "/other/orders-${SECRET}"


def test_every_mistake_is_named_with_its_line(tmp_path: Path) -> None:
    assert mistakes(
        tmp_path,
        """\
name: or ders
source:
  servers: 127.0.0.1:9092
  topic: orders
  options:
    kafka.isolation.levle: read_committed
    kafka.group.protocol: x
    failOnDataLoss: maybe
decode:
  jsno: id BIGINT
watermark: {column: at, delay: soon}
deduplicate: []
sql: SELECT 1 FROM records
python: clean
sink:
  delta: /lake
  mode: upsert
  order_by: at
trigger: sometimes
checkpiont: /x
group:
""",
    ) == [
        "1: 'checkpoint' is missing",
        "1: name: 'or ders': letters, digits, '.', '_' and '-' only",
        "3: source: no topics are named: give topics, pattern or delta",
        "4: there is no 'topic' in source: did you mean 'topics'?",
        f"6: source: there is no option 'kafka.isolation.levle': {MEANT} 'kafka.isolation.level'?",
        "8: source: failOnDataLoss=maybe: allowed: true or false",
        "10: decode: say what values are: one of json, string, raw, avro, protobuf",
        "10: there is no 'jsno' in decode: did you mean 'json'?",
        "11: watermark.delay: 'soon': like '10 minutes'",
        "12: deduplicate: the list is empty",
        "14: python: 'clean': as module:function",
        "14: python: either sql or python, not both",
        "17: sink.mode: 'upsert': append, update, complete",
        "18: sink: option orderBy needs keys",
        "19: trigger: 'sometimes': an interval, like '10 seconds'",
        "20: there is no 'checkpiont': did you mean 'checkpoint'?",
        "21: group: nothing is given: give a value, or leave it out",
    ]


def test_one_mistake_does_not_hide_another(tmp_path: Path) -> None:
    """Unset variables, a missing decode and unknown keys of the sink: all in one look."""
    assert mistakes(
        tmp_path,
        """\
name: orders
source:
  servers: localhost
  topics: ${TOPIC}
  options:
    failOnDataLoss: ${MAYBE}
    maxOffsetsPerTriger: 5
sql: DELETE FROM records
sink:
  delta: ${LAKE}/orders
  topic: orders
  partitionby: day
dead_letters:
  topic: bad
  options: {kafka.acks: 2}
checkpoint: ${LAKE}/checkpoint
spark:
  sql.shuffle.partitions: 4
""",
    ) == [
        "1: 'decode' is missing: json, string, raw, avro, protobuf",
        f"3: source: kafka.bootstrap.servers: 'localhost' {NO_PORT}",
        "4: ${TOPIC}: the variable TOPIC is not set",
        "6: ${MAYBE}: the variable MAYBE is not set",
        f"7: source: there is no option 'maxOffsetsPerTriger': {MEANT} 'maxOffsetsPerTrigger'?",
        "8: sql: a SELECT from records is expected, not 'DELETE'",
        "10: sink: delta and topic exclude each other: one of delta, iceberg, topic, parquet",
        "12: there is no 'partitionby' in sink: did you mean 'partition_by'?",
        "15: dead_letters: kafka.acks=2: allowed: all, 1, 0",
        "16: ${LAKE}: the variable LAKE is not set",
        "18: spark: 'sql.shuffle.partitions': settings begin with 'spark.'",
    ]


def test_types_are_known_before_spark_runs(tmp_path: Path) -> None:
    schema = (
        "id BIGNT NOT NULL, `at it` TIMESTAMP, tags ARRAY<STRNG>, price DECIMAL(10, 2) COMMENT 'x',"
        " who STRUCT<name: STRING, born: DAT>, m MAP<STRING, ARRAY<INTT>>, ok BOOLEAN"
    )
    text = MINIMAL.replace("decode: string", f'decode: {{json: "{schema}"}}')
    assert mistakes(tmp_path, text) == [
        "5: decode.json: there is no type BIGNT: did you mean BIGINT?",
        "5: decode.json: there is no type DAT: did you mean DATE?",
        "5: decode.json: there is no type INTT: did you mean INT?",
        "5: decode.json: there is no type STRNG: did you mean STRING?",
    ]


def test_a_missing_comma_in_a_schema_is_found(tmp_path: Path) -> None:
    schema = "id BIGINT NOT NULL COMMENT 'a' name STRING, who STRUCT<a: INT b: DATE>, day DATE"
    text = MINIMAL.replace("decode: string", f'decode: {{json: "{schema}"}}')
    assert mistakes(tmp_path, text) == [
        "5: decode.json: there is no comma after a, before b",
        "5: decode.json: there is no comma after id, before name",
    ]


def test_intervals_have_units_that_spark_knows(tmp_path: Path) -> None:
    text = MINIMAL.replace("decode: string", "decode: {string: true, max_future: 1 h}")
    text += "trigger: 10 s\nwatermark: {column: _timestamp, delay: 5 min}\n"
    assert mistakes(tmp_path, text) == [
        "5: decode.max_future: '1 h': an interval, like '1 day'",
        "10: trigger: '10 s': an interval, like '10 seconds'",
        "11: watermark.delay: '5 min': like '10 minutes'",
    ]


def test_a_missing_file_of_tls_is_a_mistake_among_others(tmp_path: Path) -> None:
    options = """\
  options:
    kafka.security.protocol: SSL
    kafka.ssl.truststore.type: PEM
    kafka.ssl.truststore.location: /nowhere/ca.pem
"""
    text = MINIMAL.replace("  topics: orders\n", f"  topics: orders\n{options}") + "trigger: x\n"
    first, second = mistakes(tmp_path, text)
    assert first.startswith("8: source: kafka.ssl.truststore.location")
    assert "/nowhere/ca.pem" in first
    assert second.startswith("14: trigger")


def test_a_table_may_be_the_source(tmp_path: Path) -> None:
    text = """\
name: silver
source:
  delta: /lake/bronze
  where: day >= '2026-01-01' AND shop IN ('a', 'b')
  columns: [id, day, shop]
  options: {skipChangeCommits: true, maxFilesPerTrigger: 100}
sql: SELECT id, day FROM records
sink: {delta: /lake/silver}
checkpoint: /lake/_checkpoints/silver
"""
    pipeline = read(tmp_path, text)
    assert isinstance(pipeline.source, TableSource)
    assert pipeline.inputs["records"].decode is None
    assert pipeline.group is None
    bad = text.replace("day >=", "day LIKE").replace("skipChangeCommits", "skipChanges")
    bad = bad.replace("sink: {delta: /lake/silver}", "sink: {topic: t}") + "dead_letters: drop\n"
    assert mistakes(tmp_path, bad) == [
        "4: source: where: 'LIKE': allowed are =, !=, <, <=, >, >=, IN (…), IS NULL, IS NOT NULL",
        "6: source: there is no option 'skipChanges': did you mean 'skipChangeCommits'?",
        "8: 'servers' is missing: the source is a table",
        "10: dead_letters: the rows of a table are columns already: leave it out",
    ]


def test_options_are_judged_as_a_query_would(tmp_path: Path) -> None:
    found = mistakes(
        tmp_path,
        """\
name: orders
source:
  servers: nowhere:port
  topics: orders
  options:
    kafka.isolation.levle: read_committed
    kafka.key.deserializer: x
    failOnDataLoss: maybe
decode: string
sink:
  delta: /lake
  target_file_size: big
dead_letters:
  topic: bad
  options:
    kafka.acks: 2
checkpoint: /x
""",
    )
    assert [line.partition(":")[0] for line in found] == ["3", "6", "7", "8", "12", "16"]
    assert "did you mean 'kafka.isolation.level'?" in found[1]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ["1: the file is empty"]),
        ("- a\n", ["1: the file is no mapping"]),
        (
            "name: x\ndecode: {json: a INT}\nsql: SELECT a: b\n",
            [f"3: not YAML: {NOT_A_MAPPING}: {IN_QUOTES}; {ONE_COLUMN}"],
        ),
        (MINIMAL + "create_topics: maybe\n", ["10: create_topics: true or false"]),
        (
            MINIMAL + "expect:\n  small: {condition: id < 5, otherwise: drp}\n  b: {conditon: x}\n",
            [
                "11: expect.small.otherwise: 'drp': warn, drop, dead_letters, fail",
                "12: 'condition' is missing in expect.b",
                "12: there is no 'conditon' in expect.b: did you mean 'condition'?",
            ],
        ),
        (
            MINIMAL + "expect:\n  small: {condition: id < 5, otherwise: dead_letters}\n",
            ["11: expect.small: there is no topic for dead_letters"],
        ),
        (
            MINIMAL + "create_topics: true\n",
            ["10: create_topics: is for a sink or dead_letters with a topic"],
        ),
        (
            "name: 'x\n",
            [f"1: not YAML: {OPEN_QUOTE}: the quote is not closed"],
        ),
        (MINIMAL + "name: again\n", ["10: 'name' is there twice; first in line 1"]),
        (
            MINIMAL.replace("decode: string", "decode: xml"),
            ["5: decode: 'xml': json, string, raw, avro, protobuf"],
        ),
        (MINIMAL.replace("decode: string", "decode: json"), ["5: decode: 'json': give its schema"]),
        (
            MINIMAL.replace("decode: string", "decode: {avro: true}"),
            ["5: decode.avro: true takes the schema from a registry: give registry and subject"],
        ),
        (
            MINIMAL.replace("dead_letters: drop\n", ""),
            ["5: 'dead_letters' is missing: the topic for records that cannot be decoded, or drop"],
        ),
        (
            MINIMAL.replace("drop", "lose"),
            ["9: dead_letters: 'lose': `topic: name`, or drop"],
        ),
        (
            MINIMAL.replace("decode: string", "decode: raw"),
            ["9: dead_letters: with raw every record is good"],
        ),
        (
            MINIMAL + "deduplicate: value\n",
            ["10: deduplicate: needs a watermark, or it would remember for ever"],
        ),
        (
            MINIMAL.replace("delta: /lake/orders", "table: x"),
            [
                "7: sink: say where to: one of delta, iceberg, topic, parquet",
                f"7: there is no 'table' in sink: there are {SINK_KEYS}",
            ],
        ),
        (
            MINIMAL.replace("delta: /lake/orders", "iceberg: orders\n  mode: update\n  keys: id"),
            [
                "7: sink: table=orders: give NAMESPACE.NAME, like shop.orders",
                "7: sink: warehouse is missing: give a directory, or a catalog by catalog.uri",
                "8: sink.mode: 'update': append",
                f"9: there is no 'keys' in sink: there are {ICEBERG_KEYS}",
            ],
        ),
        (
            MINIMAL.replace("name: orders", "name: ${NAME}"),
            [
                "1: name: '${NAME}': letters, digits, '.', '_' and '-' only",
                "1: name: cannot come from the environment or a file",
            ],
        ),
    ],
)
def test_files_that_cannot_be_used(tmp_path: Path, text: str, expected: list[str]) -> None:
    assert mistakes(tmp_path, text) == expected


JOINED = """\
name: shop
inputs:
  orders:
    servers: 127.0.0.1:9092
    topics: orders
    decode: {json: "id BIGINT"}
    watermark: {column: _timestamp, delay: 10 minutes}
  payments:
    delta: /lake/payments
    watermark: {column: at, delay: 10 minutes}
sql: SELECT o.id FROM orders o JOIN payments USING (id)
outputs: {paid: {delta: /lake/paid}}
dead_letters: {topic: bad}
checkpoint: /lake/checkpoint
"""
PREFIXED = "{topic: a, options: {transactionalIdPrefix: p}}"
TWICE = "is said twice: leave it to the key "
FEEDS_ITSELF = "is also read: the pipeline would feed itself"


@pytest.mark.parametrize(
    ("text", "before", "after", "expected"),
    [
        (MINIMAL, "  topics", "\ttopics", "4: …: indent with spaces, not with tabs"),
        (MINIMAL, "  topics", " topics", f"4: …: {ONE_COLUMN}"),
        (MINIMAL, "orders\ndecode", "or-*\ndecode", "4: source: …; for several by their names …"),
        (
            MINIMAL,
            "drop",
            "{topic: a b}",
            "9: dead_letters: the topic name 'a b' may …",
        ),
        (MINIMAL, "drop", "{topic: orders}", f"9: dead_letters: 'topic orders' {FEEDS_ITSELF}"),
        (
            MINIMAL,
            "delta: /lake/orders",
            "topic: orders",
            f"7: sink: … {FEEDS_ITSELF}",
        ),
        (MINIMAL, "/lake/orders", "/lake/checkpoint", "7: sink: … is the checkpoint"),
        (TABLE, "/lake/silver}", "/lake/bronze}", f"3: sink: '/lake/bronze' {FEEDS_ITSELF}"),
        (MINIMAL, "decode", "  from: start\ndecode", "5: …: expected earliest, latest or like …"),
        (MINIMAL, "decode", "  pattern: o.*\ndecode", "3: source: topics and pattern exclude …"),
        (JOINED, "id BIGINT", "id, n INT", "6: …: id has no type, like id STRING"),
        (JOINED, "id BIGINT", "a STRUCT<b: INT, c>, id", "6: …: c has no type, like c STRING"),
        (JOINED, "id BIGINT", "id ARRAY<INT", "6: …: every < needs a >, every ( a )"),
        (MINIMAL, "sink", "sql: SELECT 1 FROM orders\nsink", "6: sql: does not use records: …"),
        (JOINED, " JOIN payments USING (id)", "", "11: sql: does not use payments: …"),
        (JOINED, "    watermark: {column: at, delay: 10 minutes}\n", "", "9: inputs.payments: …"),
        (JOINED, "column: _timestamp", "column: _tmestamp", "7: … mean '_timestamp'?"),
        (JOINED, "    watermark", "    deduplicate: [ID, idd]\n    watermark", "7: … mean 'id'?"),
        (
            TABLE,
            "bronze}",
            "bronze, columns: id}\nwatermark: {column: at, delay: 1 day}",
            "3: watermark: there is no column 'at': there are id",
        ),
        (JOINED, "id BIGINT", "id INT, ID INT", "6: …: ID is there twice"),
        (JOINED, "}}\n", "}, more: {delta: /lake/paid/}}\n", "12: outputs.more: … outputs.paid: …"),
        (JOINED, "{topic: bad}", "{topic: orders}", f"13: … {FEEDS_ITSELF}"),
        (TABLE, "/lake/silver}", "/lake/silver, mode: complete, keys: id}", "3: sink.keys: …"),
        (TABLE, "/lake/bronze}", "'${a-b}'}", "2: source.delta: ${a-b} is neither …"),
        (MINIMAL, "/lake/checkpoint", "''", "8: checkpoint: nothing is given: …"),
        (JOINED, "sql", "tables: {x: /x,\n  a-b: /y}\nsql", "12: tables: 'a-b': a name for …"),
        (
            MINIMAL,
            "decode",
            "  options: {subscribe: x}\ndecode",
            f"5: …: 'subscribe' {TWICE}topics",
        ),
        (
            MINIMAL,
            "decode",
            "  from: latest\n  options: {startingoffsets: x}\ndecode",
            f"6: source.options: 'startingoffsets' {TWICE}from",
        ),
        (
            JOINED,
            "{topic: bad}",
            "{topic: bad, options: {kafka.bootstrap.servers: x:1}}",
            f"13: dead_letters.options: 'kafka.bootstrap.servers' {TWICE}servers",
        ),
        (
            JOINED,
            "}}\ndead_letters: {topic: bad}",
            f"}}, x: {PREFIXED}}}\ndead_letters: {PREFIXED.replace(': a', ': b')}",
            "13: dead_letters: transactionalIdPrefix 'p' is that of outputs.x: …",
        ),
    ],
)
def test_a_mistake_comes_with_its_line_and_what_to_do(
    tmp_path: Path, text: str, before: str, after: str, expected: str
) -> None:
    assert before in text
    found = mistakes(tmp_path, text.replace(before, after, 1))
    pattern = ".*".join(re.escape(part) for part in expected.split("…"))
    assert [one for one in found if re.fullmatch(pattern, one)], found


def test_streams_that_are_not_joined_need_no_watermark(tmp_path: Path) -> None:
    union = "FROM (SELECT id FROM orders UNION ALL SELECT id FROM payments) JOIN products"
    text = JOINED.replace("FROM orders o JOIN payments USING (id)", union).replace("o.id", "id")
    text = re.sub("    watermark: .*\n", "", text) + "tables: {products: /lake/products}\n"
    assert len(read(tmp_path, text).inputs) == 2


def test_the_group_is_the_sources_unless_the_pipeline_names_its_own(tmp_path: Path) -> None:
    named = MINIMAL.replace(
        "  topics: orders\n", "  topics: orders\n  options: {Kafka.Group.Id: '${WHO}'}\n"
    )
    assert group_of(read(tmp_path, named, WHO="readers"), WHO="readers") == "readers"
    own = named + "group: mine-${WHO}\n"
    assert group_of(read(tmp_path, own, WHO="readers"), WHO="readers") == "mine-readers"
    assert group_of(read(tmp_path, named + "group: false\n", WHO="readers")) is None


def test_what_references_stand_for_must_be_there(tmp_path: Path) -> None:
    text = MINIMAL.replace("topics: orders", "topics: ${TOPIC}") + "group: g\n"
    text = text.replace("/lake/orders", "${file:/nowhere/path}").replace("/lake/c", "${1}/c")
    assert mistakes(tmp_path, text) == [
        "4: ${TOPIC}: the variable TOPIC is not set",
        "7: ${file:/nowhere/path}: No such file or directory",
        "8: checkpoint: ${1} is neither ${NAME} nor ${file:/path}; write $${ for a plain ${",
    ]


def test_a_mistake_in_a_secret_does_not_show_it(tmp_path: Path) -> None:
    (tmp_path / "jaas").write_text("hunter2\n")
    text = MINIMAL.replace(
        "  topics: orders\n",
        f"""\
  topics: orders
  options:
    kafka.security.protocol: SASL_PLAINTEXT
    kafka.sasl.mechanism: PLAIN
    kafka.sasl.jaas.config: ${{file:{tmp_path / "jaas"}}}
""",
    )
    (problem,) = mistakes(tmp_path, text)
    assert problem.startswith("8: source: kafka.sasl.jaas.config: ")
    assert "hunter2" not in problem

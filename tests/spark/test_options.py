"""Options: one table, nothing ignored in silence, and no secret in any text."""

import logging

import pytest

from suwi.client.addresses import Address
from suwi.model.ids import Offset, PartitionIndex, TopicPartition
from suwi.spark.offsets import EARLIEST, LATEST, AtTime, ByPartition, Everywhere
from suwi.spark.option_table import TABLE, Status, Use, find, uses
from suwi.spark.options import (
    Assigned,
    BadOption,
    Matching,
    SinkOptions,
    SourceOptions,
    Subscribed,
    examine,
    read_connection,
    read_sink_options,
    read_source_options,
)

BASE = {"kafka.bootstrap.servers": "a:1,b:9092", "subscribe": "orders"}
# The options of Spark's Kafka connector, as its guide lists them.
CONNECTOR = """
    assign subscribe subscribePattern kafka.bootstrap.servers startingTimestamp
    startingOffsetsByTimestamp startingOffsets endingTimestamp endingOffsetsByTimestamp
    endingOffsets failOnDataLoss kafkaConsumer.pollTimeoutMs fetchOffset.numRetries
    fetchOffset.retryIntervalMs partition.metadata.cache.ttl.ms maxOffsetsPerTrigger
    minOffsetsPerTrigger maxTriggerDelay minPartitions maxRecordsPerPartition groupIdPrefix
    kafka.group.id includeHeaders startingOffsetsByTimestampStrategy topic
""".split()


def partition(topic: str, number: int) -> TopicPartition:
    return TopicPartition(topic, PartitionIndex(number))


def stream(**options: str) -> SourceOptions:
    return read_source_options({**BASE, **_dotted(options)}, streaming=True)


def batch(**options: str) -> SourceOptions:
    return read_source_options({**BASE, **_dotted(options)}, streaming=False)


def _dotted(options: dict[str, str]) -> dict[str, str]:
    return {name.replace("__", "."): value for name, value in options.items()}


def test_defaults_are_those_of_the_connector() -> None:
    options = stream()
    assert options.connection.bootstrap == (Address("a", 1), Address("b", 9092))
    assert options.selection == Subscribed(("orders",))
    assert options.starting == Everywhere(LATEST)
    assert batch().starting == Everywhere(EARLIEST)
    assert options.ending == Everywhere(LATEST)
    assert options.fail_on_data_loss
    assert not options.include_headers
    assert not options.read.committed_only
    assert options.max_trigger_delay_ms == 15 * 60_000
    assert options.poll_timeout_ms == 120_000


def test_names_of_options_do_not_depend_on_case() -> None:
    options = read_source_options(
        {"KAFKA.Bootstrap.Servers": "a:1", "SUBSCRIBE": "x", "failondataLOSS": "FALSE"},
        streaming=True,
    )
    assert not options.fail_on_data_loss


@pytest.mark.parametrize("name", CONNECTOR)
def test_every_option_of_the_connector_is_in_the_table(name: str) -> None:
    assert uses(name)
    for use in (Use.STREAM, Use.BATCH, Use.WRITE):
        option = find(name, use)
        assert option is None or option.status is not Status.REFUSED


def test_no_option_is_in_the_table_twice_and_each_says_something() -> None:
    names = [(option.name.lower(), use) for option in TABLE for use in option.use]
    assert len(names) == len(set(names))
    assert all(option.word for option in TABLE)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("startingOffset", "startingOffsets"),
        ("maxOffsetPerTrigger", "maxOffsetsPerTrigger"),
        ("kafka.isolation_level", "kafka.isolation.level"),
        ("bootstrap.servers", "kafka.bootstrap.servers"),
    ],
)
def test_an_unknown_option_is_an_error_that_names_the_one_meant(name: str, meant: str) -> None:
    with pytest.raises(BadOption, match=f"'{meant}'"):
        stream(**{name: "x"})


def test_an_unknown_option_that_is_like_none_points_to_the_page() -> None:
    with pytest.raises(BadOption, match=r"docs/spark-source\.md"):
        stream(zzzzzz="x")


@pytest.mark.parametrize(
    "option",
    [each for each in TABLE if each.status is Status.REFUSED and Use.STREAM in each.use],
)
def test_what_is_refused_is_refused_by_name_with_a_way_out(option: object) -> None:
    name, word = option.name, option.word  # type: ignore[attr-defined]
    with pytest.raises(BadOption) as refused:
        stream(**{name: "secret-value"})
    assert name in str(refused.value)
    assert word in str(refused.value)
    assert "secret-value" not in str(refused.value)


def test_what_has_no_effect_is_taken_with_a_word(caplog: pytest.LogCaptureFixture) -> None:
    stream(kafka__session__timeout__ms="1000")
    (said,) = caplog.records
    assert said.levelno == logging.WARNING
    assert said.getMessage().startswith("option kafka.session.timeout.ms has no effect: ")


def test_topics_are_named_in_one_of_three_ways() -> None:
    pattern = {"kafka.bootstrap.servers": "a:1", "subscribePattern": "a|b.*"}
    assert read_source_options(pattern, streaming=True).selection == Matching("a|b.*")
    assigned = {"kafka.bootstrap.servers": "a:1", "assign": '{"a":[0,2],"b":[1]}'}
    assert read_source_options(assigned, streaming=True).selection == Assigned(
        (partition("a", 0), partition("a", 2), partition("b", 1))
    )
    assert stream(subscribe=" a , b,,a ").selection == Subscribed(("a", "b"))


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"kafka.bootstrap.servers": "a:1"}, "no topics are named"),
        ({**BASE, "assign": "{}"}, "subscribe and assign exclude each other"),
        ({**BASE, "subscribe": ", "}, "subscribe: no topic"),
        ({"kafka.bootstrap.servers": "a:1", "assign": "{}"}, "assign: no partition"),
        ({"kafka.bootstrap.servers": "a:1", "assign": "[1]"}, "assign: expected like"),
        ({"kafka.bootstrap.servers": "a:1", "assign": '{"a":["0"]}'}, "assign: expected like"),
        ({"kafka.bootstrap.servers": "a:1", "subscribePattern": "("}, "subscribePattern: "),
        ({"kafka.bootstrap.servers": "a:1", "subscribePattern": " "}, "subscribePattern is empty"),
        ({"subscribe": "a"}, "'kafka.bootstrap.servers' is missing"),
        ({**BASE, "kafka.bootstrap.servers": "a:x"}, "kafka.bootstrap.servers: "),
        ({**BASE, "failOnDataLoss": "maybe"}, "failOnDataLoss=maybe: allowed: true or false"),
        ({**BASE, "minPartitions": "0"}, "minPartitions=0: allowed: a whole number from 1 on"),
        ({**BASE, "maxOffsetsPerTrigger": "ten"}, "maxOffsetsPerTrigger=ten: allowed: a whole"),
        ({**BASE, "kafka.isolation.level": "none"}, "allowed: one of read_uncommitted, "),
        ({**BASE, "maxTriggerDelay": "soon"}, "maxTriggerDelay=soon: allowed: like"),
        (
            {**BASE, "startingOffsets": "first"},
            "startingOffsets: expected earliest, latest or like",
        ),
        ({**BASE, "startingOffsets": '{"a":{"0":-3}}'}, "-3 of a-0 is too small"),
        (
            {**BASE, "startingOffsets": '{"a":{"0":"1"}}'},
            "startingOffsets: expected earliest, latest or like",
        ),
        ({**BASE, "startingTimestamp": "now"}, "startingTimestamp: expected milliseconds"),
        ({**BASE, "startingOffsetsByTimestampStrategy": "first"}, "allowed: one of error, latest"),
        (
            {**BASE, "minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "4"},
            "minOffsetsPerTrigger=5 is more than maxOffsetsPerTrigger=4",
        ),
        ({**BASE, "endingOffsets": "latest"}, "'endingOffsets' is for batch queries"),
    ],
)
def test_a_bad_option_of_a_stream_is_named(options: dict[str, str], problem: str) -> None:
    with pytest.raises(BadOption) as bad:
        read_source_options(options, streaming=True)
    assert problem in str(bad.value)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"startingOffsets": "latest"}, "startingOffsets cannot be latest in a batch"),
        ({"startingOffsets": '{"a":{"0":-1}}'}, "startingOffsets of a-0 cannot be latest"),
        ({"endingOffsets": "earliest"}, "endingOffsets cannot be earliest in a batch"),
        ({"endingOffsets": '{"a":{"0":-2}}'}, "endingOffsets of a-0 cannot be earliest"),
    ],
)
def test_a_batch_has_a_beginning_and_an_end(options: dict[str, str], problem: str) -> None:
    with pytest.raises(BadOption) as bad:
        batch(**options)
    assert problem in str(bad.value)


def test_a_time_goes_before_times_by_partition_and_these_before_offsets() -> None:
    by_time = '{"a":{"0":5}}'
    every = {"startingOffsets": "earliest", "startingOffsetsByTimestamp": by_time}
    assert stream(**every).starting == AtTime({partition("a", 0): 5}, or_latest=False)
    strategy = {"startingOffsetsByTimestampStrategy": "latest"}
    assert stream(**every, startingTimestamp="9", **strategy).starting == AtTime(9, or_latest=True)
    assert batch(endingTimestamp="9").ending == AtTime(9, or_latest=True)
    specific = batch(endingOffsets='{"a":{"0":5,"1":-1}}').ending
    assert specific == ByPartition({partition("a", 0): Offset(5), partition("a", 1): LATEST})


def test_options_of_streams_are_ignored_in_batches_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    batch(maxOffsetsPerTrigger="5")
    (said,) = caplog.records
    assert said.getMessage() == "option maxOffsetsPerTrigger has no effect in batch queries"


@pytest.mark.parametrize(
    ("text", "delay_ms"), [("500", 500), ("90s", 90_000), ("2 min", 120_000), ("1D", 86_400_000)]
)
def test_durations_have_units(text: str, delay_ms: int) -> None:
    assert stream(maxTriggerDelay=text).max_trigger_delay_ms == delay_ms


def test_keys_of_kafka_become_settings_of_the_client() -> None:
    options = stream(
        kafka__client__id="me",
        kafka__isolation__level="READ_COMMITTED",
        kafka__max__partition__fetch__bytes="100",
        kafka__fetch__max__bytes="90",
        kafka__fetch__max__wait__ms="7",
        kafka__request__timeout__ms="1500",
        kafka__check__crcs="false",
    )
    assert options.connection.client.client_id == "me"
    assert options.connection.client.request_timeout_s == 1.5
    assert options.read.committed_only
    assert options.read.partition_bytes_max == 90
    assert options.read.max_wait_ms == 7
    assert not options.check_crcs


SECRET = "pssst-9"
PLAIN = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required "
    f'username="alice" password="{SECRET}";'
)
SASL = {
    **BASE,
    "kafka.security.protocol": "SASL_PLAINTEXT",
    "kafka.sasl.mechanism": "PLAIN",
    "kafka.sasl.jaas.config": PLAIN,
}


def test_secrets_are_in_no_text() -> None:
    options = read_source_options(SASL, streaming=True)
    assert options.connection.security["sasl.jaas.config"] == PLAIN
    assert SECRET not in repr(options)
    assert SECRET not in str(options.connection)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"kafka.security.protocol": "TLS"}, "kafka.security.protocol=TLS: allowed: PLAINTEXT"),
        ({"kafka.sasl.mechanism": "GSSAPI"}, "kafka.sasl.mechanism=GSSAPI: allowed: PLAIN"),
        ({"kafka.sasl.jaas.config": f'x required password="{SECRET}'}, "kafka.sasl.jaas.config: "),
        ({"kafka.sasl.jaas.config": f'x required password="{SECRET}";'}, "username"),
    ],
)
def test_bad_settings_of_security_are_named_without_secrets(
    change: dict[str, str], problem: str
) -> None:
    with pytest.raises(BadOption) as bad:
        read_connection({**SASL, **change})
    assert problem in str(bad.value)
    assert SECRET not in str(bad.value)


def test_uses_are_those_of_the_connector() -> None:
    read = [option for option in TABLE if option.use & (Use.STREAM | Use.BATCH)]
    streaming = {option.name for option in read if Use.BATCH not in option.use}
    assert streaming == {"maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay"}
    ending = {option.name for option in read if Use.STREAM not in option.use}
    assert ending == {"endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp"}


@pytest.mark.parametrize("servers", ["localhost", "a:1,b", "[::1]"])
def test_servers_without_a_port_are_refused_at_once(servers: str) -> None:
    with pytest.raises(BadOption, match="has no port: give HOST:PORT, like localhost:9092"):
        stream(kafka__bootstrap__servers=servers)


def test_every_mistake_is_named_and_not_only_the_first() -> None:
    faults = examine(
        {
            "kafka.bootstrap.servers": "localhost",
            "subscribe": "a",
            "assign": "{}",
            "failOnDataLoss": "maybe",
            "startingOffsts": "x",
            "startingOffsets": "first",
            "where": "valu = 'x'",
            "kafka.security.protocol": "TLS",
        },
        Use.STREAM,
    )
    assert [fault.option for fault in faults] == [
        "kafka.bootstrap.servers",
        "failOnDataLoss",
        "startingOffsts",
        "kafka.security.protocol",
        None,
        "startingOffsets",
        "where",
    ]


# -- writing ---------------------------------------------------------------------------------------


def sink(**options: str) -> SinkOptions:
    """`kafka__acks="1"` is the option kafka.acks."""
    return read_sink_options({"kafka.bootstrap.servers": "127.0.0.1:9092", **_dotted(options)})


def of_sink(status: Status) -> list[str]:
    return [each.name for each in TABLE if each.status is status and Use.WRITE in each.use]


@pytest.mark.parametrize("name", of_sink(Status.NOTED))
def test_a_sink_takes_what_has_no_effect_with_a_word(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    sink(**{name: "1"})
    (said,) = caplog.records
    assert said.levelno == logging.WARNING
    assert said.getMessage().startswith(f"option {name} has no effect: ")


def test_a_sink_takes_what_has_an_effect_without(caplog: pytest.LogCaptureFixture) -> None:
    options = sink(topic="a", kafka__acks="1", kafka__linger__ms="5", checkpointLocation="/c")
    assert (options.topic, options.producer.acks, options.producer.linger_s) == ("a", 1, 0.005)
    assert not caplog.records


@pytest.mark.parametrize("name", of_sink(Status.REFUSED))
def test_a_sink_refuses_by_name(name: str) -> None:
    with pytest.raises(BadOption, match=f"{name}' is not supported: "):
        sink(**{name: "1"})


def test_a_sink_says_which_options_are_for_reading() -> None:
    with pytest.raises(BadOption, match="option 'subscribe' is for reading"):
        sink(subscribe="x")
    with pytest.raises(BadOption, match=r"kafka\.acks=2: allowed: all, 1, 0"):
        sink(kafka__acks="2")


def test_the_newer_keys_of_kafkas_producer_are_known() -> None:
    for name in ("compression.zstd.level", "transaction.two.phase.commit.enable"):
        assert find(f"kafka.{name}", Use.WRITE) is not None

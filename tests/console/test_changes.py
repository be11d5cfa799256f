"""Changes: refused unless they are allowed, previewed, confirmed, logged, and seen by others."""

import asyncio
import base64
import json
import logging
import shlex
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource

from suwi.admin.failure import Failure
from suwi.console import change
from suwi.console.access import CHANGE_HEADER
from suwi.console.change import Order, Plan, _apply, audit
from suwi.console.server import CHANGES
from suwi.model.errors import RequestTimedOut
from tests.broker_process import COMMAND, BrokerProcess, unique_name
from tests.cli.support import Suwi
from tests.cli.transactional_producer import COMMIT, transact, write_late
from tests.console.support import CLUSTER, Browser, ConsoleThread

NULL = {"form": "null", "text": ""}
RULE = {
    "resource": "topic:t", "principal": "User:a", "operations": "read", "host": "",
    "is_denial": False, "is_literal": False,
}  # fmt: skip
VALUES: dict[str, dict[str, object]] = {
    "abort-transaction": {"topic": "t", "partition": 0, "start_offset": 0},
    "add-acl": RULE,
    "add-partitions": {"topic": "t", "partitions": 9},
    "cancel-reassignment": {"topic": "t", "partition": 0},
    "create-topic": {"topic": "new", "partitions": 1, "replication_factor": None, "configs": {}},
    "delete-group": {"group": "g"},
    "delete-offsets": {"group": "g", "topic": "t"},
    "delete-records": {"topic": "t", "partition": 0, "before": None},
    "delete-topic": {"topic": "t"},
    "drain-broker": {"broker": 1},
    "elect-leaders": {"topic": None},
    "move-replicas": {"topic": "t", "partition": 0, "replicas": [1]},
    "remove-acl": RULE,
    "remove-quota": {"entity": {"user": "a"}, "key": "producer_byte_rate"},
    "reset-group": {
        "group": "g", "topic": None, "partition": None, "to": "to-earliest", "value": "",
    },
    "send-record": {
        "topic": "t", "record": {"key": NULL, "value": NULL, "headers": [], "partition": None},
    },
    "set-configs": {"topic": "t", "configs": {"retention.ms": "1"}},
    "set-quota": {"entity": {"user": "a"}, "key": "producer_byte_rate", "value": "1"},
}  # fmt: skip


@pytest.fixture
def lines() -> Iterator[list[dict[str, Any]]]:
    """What the console logs of changes."""
    found: list[dict[str, Any]] = []

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(json.loads(record.getMessage()))

    handler = Lines()
    audit.addHandler(handler)
    audit.setLevel(logging.INFO)
    yield found
    audit.removeHandler(handler)


@pytest.fixture
def outside(broker: BrokerProcess) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.address})


def produce(broker: BrokerProcess, topic: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": broker.address})
    for number in range(count):
        producer.produce(topic, b"v%d" % number, b"k", partition=0)
    assert producer.flush(120) == 0


def read(broker: BrokerProcess, topic: str, partition: int = 0, offset: int = 0) -> Any:
    """One record, by another client."""
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": unique_name("reader")})
    consumer.assign([TopicPartition(topic, partition, offset)])
    try:
        message = consumer.poll(120)
        assert message is not None
        assert message.error() is None
        return message
    finally:
        consumer.close()


def committed(broker: BrokerProcess, group: str, topic: str, partitions: int) -> list[int]:
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": group})
    try:
        asked = [TopicPartition(topic, partition) for partition in range(partitions)]
        return [place.offset for place in consumer.committed(asked, timeout=120)]
    finally:
        consumer.close()


def commit(broker: BrokerProcess, group: str, topic: str, *offsets: int) -> None:
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": group})
    places = [TopicPartition(topic, partition, at) for partition, at in enumerate(offsets)]
    consumer.commit(offsets=places, asynchronous=False)
    consumer.close()


def run_command(command: str) -> None:
    """A command that the console shows, as it was copied to a shell."""
    suwi = shlex.join(COMMAND)
    done = subprocess.run(
        ["bash", "-c", f'suwi() {{ {suwi} "$@"; }}; {command}'], capture_output=True, timeout=120
    )
    assert done.returncode == 0, done.stderr


# -- who may change --------------------------------------------------------------------------------


def test_there_are_values_for_every_change() -> None:
    assert VALUES.keys() == CHANGES.keys()


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("is_preview", [True, False])
def test_a_console_that_only_reads_refuses_every_change(
    browser: Browser, change: str, is_preview: bool
) -> None:
    assert browser.get("/api/clusters").json()["allows_changes"] is False
    answer = browser.order(change, {"values": VALUES[change], "is_preview": is_preview})
    assert (answer.status, answer.json()["kind"]) == (403, "forbidden")
    assert "--allow-changes" in answer.json()["text"]


@pytest.mark.parametrize("change", CHANGES)
def test_a_page_of_another_site_changes_nothing(
    changing_console: ConsoleThread, editor: Browser, lines: list[dict[str, Any]], change: str
) -> None:
    assert editor.get("/api/clusters").json()["allows_changes"] is True
    own = f"http://127.0.0.1:{changing_console.port}"
    body = json.dumps({"values": VALUES[change], "is_preview": False}).encode()
    path = f"/api/clusters/{CLUSTER}/changes/{change}"
    for headers in (
        {},
        {"Origin": own},
        {CHANGE_HEADER: "1"},
        {"Origin": "https://evil.example", CHANGE_HEADER: "1"},
        {"Origin": "null", CHANGE_HEADER: "1"},
        {"Origin": own, CHANGE_HEADER: "1", "Sec-Fetch-Site": "cross-site"},
    ):
        assert editor.send("POST", path, headers=headers, body=body).status == 403
    without_session = Browser(changing_console)
    assert without_session.order(change, {}).status == 401
    assert editor.get(path).status == 405
    assert lines == []


@pytest.mark.parametrize(
    "body",
    [
        None,
        [],
        {},
        {"values": {}},
        {"values": {}, "is_preview": True},
        {"values": {"topic": 1}, "is_preview": True},
        {"values": {"topic": "t", "more": 1}, "is_preview": True},
        {"values": {"topic": "\ud800"}, "is_preview": True},
        {"values": {"topic": "t" * 40_000}, "is_preview": True},
        {"values": {"topic": "t"}, "is_preview": 1},
        {"values": {"topic": "t"}, "is_preview": True, "host": "evil.example"},
    ],
)
def test_a_body_that_makes_no_sense_is_refused(editor: Browser, body: object) -> None:
    answer = editor.order("delete-topic", body)
    assert (answer.status, answer.json()["kind"]) == (400, "bad")


def test_numbers_out_of_range_and_unknown_changes_are_refused(
    changing_console: ConsoleThread, editor: Browser, topic: str
) -> None:
    assert editor.refusal("add-partitions", topic=topic, partitions=1 << 40)[1] == "partitions"
    assert editor.refusal("add-partitions", topic=topic, partitions=-1)[1] == "partitions"
    assert editor.order("no-change", {}).status == 404
    assert editor.order("delete-topic", {}, cluster="other").status == 409
    deep = b"[" * 60_000
    own = {"Origin": f"http://127.0.0.1:{changing_console.port}", CHANGE_HEADER: "1"}
    path = f"/api/clusters/{CLUSTER}/changes/delete-topic"
    assert editor.send("POST", path, headers=own, body=deep).status == 400
    for name, length in (("delete-topic", 70_000), ("send-record", 3_000_000)):
        large = {**own, "Content-Length": str(length)}
        path = f"/api/clusters/{CLUSTER}/changes/{name}"
        assert editor.send("POST", path, headers=large).status == 413


def test_a_cluster_that_does_not_answer_says_so(editor: Browser) -> None:
    answer = editor.order("delete-topic", {"values": {"topic": "t"}, "is_preview": True}, "away")
    assert (answer.status, answer.json()["kind"]) == (503, "unreachable")


# -- the log ---------------------------------------------------------------------------------------


def test_each_change_is_one_line_that_says_who_what_and_how_it_ended(
    editor: Browser, lines: list[dict[str, Any]]
) -> None:
    name = unique_name("audited")
    values = {"topic": name, "partitions": 2, "replication_factor": None, "configs": {}}
    editor.preview("create-topic", **values)
    assert lines == []
    editor.change("create-topic", **values)
    answer = editor.order("create-topic", {"values": values, "is_preview": False})
    assert answer.status == 409
    done, failed = lines
    assert (done["change"], done["on"], done["cluster"]) == ("create-topic", name, CLUSTER)
    assert (done["who"], done["outcome"], done["text"]) == ("token", "done", f"created {name}")
    assert done["from"].startswith("127.0.0.1:")
    assert done["values"] == {"partitions": 2, "replication_factor": None, "configs": []}
    assert failed["outcome"] == "failed"
    assert "exists" in failed["text"]


def test_the_log_does_not_have_the_contents_of_records(
    editor: Browser, topic: str, lines: list[dict[str, Any]]
) -> None:
    text = {"form": "text", "text": "a secret"}
    record = {"key": text, "value": text, "headers": [], "partition": 0}
    editor.change("send-record", topic=topic, record=record)
    (line,) = lines
    assert line["on"] == topic
    assert "secret" not in json.dumps(line)


# -- topics ----------------------------------------------------------------------------------------


def test_a_topic_is_created_as_previewed(editor: Browser, outside: AdminClient) -> None:
    name = unique_name("created")
    values = {
        "topic": name,
        "partitions": 3,
        "replication_factor": None,
        "configs": {"retention.ms": "86400000"},
    }
    shown = editor.preview("create-topic", **values)
    assert {"what": "partitions", "before": "", "after": "3"} in shown["rows"]
    assert f"topics create {name} --partitions 3 --config retention.ms=86400000" in shown["command"]
    assert name not in outside.list_topics(timeout=120).topics
    editor.change("create-topic", **values)
    assert len(outside.list_topics(timeout=120).topics[name].partitions) == 3
    resource = ConfigResource(ConfigResource.Type.TOPIC, name)
    (configs,) = [f.result() for f in outside.describe_configs([resource]).values()]
    assert configs["retention.ms"].value == "86400000"


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"topic": "no spaces"}, "topic"),
        ({"topic": ""}, "topic"),
        ({"partitions": 0}, "partitions"),
        ({"replication_factor": 9}, "replication_factor"),
        ({"configs": {"retention.ms": "soon"}}, "configs"),
        ({"configs": {"no.key": "1"}}, "configs"),
    ],
)
def test_what_is_wrong_with_a_topic_is_shown_at_its_field(
    editor: Browser, wrong: dict[str, object], field: str
) -> None:
    values = {"topic": "t", "partitions": 1, "replication_factor": 1, "configs": {}}
    text, at = editor.refusal("create-topic", **{**values, **wrong})
    assert (at, bool(text)) == (field, True)


def test_a_topic_is_deleted_only_if_its_name_is_typed(
    editor: Browser, topic: str, outside: AdminClient
) -> None:
    assert editor.preview("delete-topic", topic=topic)["confirm"] == topic
    for confirm in ("", "other", f"{topic} "):
        order = {"values": {"topic": topic}, "is_preview": False, "confirm": confirm}
        answer = editor.order("delete-topic", order)
        assert (answer.status, answer.json()["field"]) == (400, "confirm")
    assert topic in outside.list_topics(timeout=120).topics
    assert editor.change("delete-topic", topic=topic) == f"deleted {topic}"
    assert topic not in outside.list_topics(timeout=120).topics
    assert "does not exist" in editor.refusal("delete-topic", topic=topic)[0]


def test_partitions_are_added_never_removed(
    editor: Browser, topic: str, outside: AdminClient
) -> None:
    editor.change("add-partitions", topic=topic, partitions=5)
    assert len(outside.list_topics(timeout=120).topics[topic].partitions) == 5
    assert "never removed" in editor.refusal("add-partitions", topic=topic, partitions=4)[0]


def test_a_setting_is_set_and_unset(editor: Browser, topic: str, outside: AdminClient) -> None:
    def value() -> str:
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
        (configs,) = [f.result() for f in outside.describe_configs([resource]).values()]
        return str(configs["retention.ms"].value)

    default = value()
    shown = editor.preview("set-configs", topic=topic, configs={"retention.ms": "1000"})
    assert shown["rows"] == [{"what": "retention.ms", "before": default, "after": "1000"}]
    editor.change("set-configs", topic=topic, configs={"retention.ms": "1000"})
    assert value() == "1000"
    text, field = editor.refusal("set-configs", topic=topic, configs={"retention.ms": "x"})
    assert (field, "retention.ms" in text) == ("configs", True)
    editor.change("set-configs", topic=topic, configs={"retention.ms": None})
    assert value() == default


def test_records_are_deleted_up_to_an_offset(
    editor: Browser, topic: str, broker: BrokerProcess
) -> None:
    produce(broker, topic, 5)
    shown = editor.preview("delete-records", topic=topic, partition=0, before=3)
    assert shown["confirm"] == topic
    editor.change("delete-records", topic=topic, partition=0, before=3)
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "none"})
    assert consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=120) == (3, 5)
    editor.change("delete-records", topic=topic, partition=0, before=None)
    assert consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=120) == (5, 5)
    consumer.close()
    text, _ = editor.refusal("delete-records", topic=topic, partition=0, before=9)
    assert "no records to delete" in text


# -- records ---------------------------------------------------------------------------------------


def test_a_record_is_sent_again_with_exactly_its_bytes(
    editor: Browser, topic: str, broker: BrokerProcess
) -> None:
    hard = [b"\xff\x00\xfe", b"a\r\nb", b"\x1b[2J", "\u202eabc".encode(), b"", b"text\n\tmore"]
    producer = Producer({"bootstrap.servers": broker.address})
    for data in hard:
        producer.produce(topic, data, data, partition=0, headers=[("h", data), ("h", None)])
    producer.produce(topic, None, b"deleted", partition=0)
    assert producer.flush(120) == 0
    for offset in range(len(hard) + 1):
        record = editor.page("edited-record", topic=topic, partition=0, offset=offset)
        record["partition"] = 1
        editor.change("send-record", topic=topic, record=record)
        first, again = read(broker, topic, 0, offset), read(broker, topic, 1, offset)
        assert (again.key(), again.value()) == (first.key(), first.value())
        assert again.headers() == first.headers()
    assert editor.problem("edited-record", topic=topic, partition=0, offset=99) == (404, "missing")


def test_a_header_whose_name_is_no_text_keeps_it(
    editor: Browser, topic: str, broker: BrokerProcess, suwi: Suwi
) -> None:
    header = {"name": {"form": "base64", "text": base64.b64encode(b"\xff\x01").decode()}}
    record = {
        "key": NULL,
        "value": NULL,
        "headers": [{**header, "value": {"form": "text", "text": "v"}}],
        "partition": 0,
    }
    editor.change("send-record", topic=topic, record=record)
    assert editor.page("edited-record", topic=topic, partition=0, offset=0) == record
    (printed,) = suwi.json_lines("consume", topic, "--from-beginning", "--no-follow")
    assert printed["headers"] == [{"name_base64": "/wE=", "value": "v"}]


def test_an_edited_record_goes_where_its_key_belongs_and_the_command_does_the_same(
    editor: Browser, topic: str, broker: BrokerProcess
) -> None:
    record = {
        "key": {"form": "text", "text": "it's a \\n key"},
        "value": {"form": "base64", "text": "/wA="},
        "headers": [],
        "partition": None,
    }
    told = editor.change("send-record", topic=topic, record=record)
    partition = int(told.removeprefix(f"wrote {topic}-").partition(",")[0])
    run_command(editor.preview("send-record", topic=topic, record=record)["command"])
    first, second = read(broker, topic, partition, 0), read(broker, topic, partition, 1)
    assert first.key() == second.key() == b"it's a \\n key"
    assert first.value() == second.value() == b"\xff\x00"


def test_what_is_no_record_is_refused(editor: Browser, topic: str) -> None:
    bad = {"form": "base64", "text": "#"}
    record = {"key": NULL, "value": bad, "headers": [], "partition": None}
    assert "base 64" in editor.refusal("send-record", topic=topic, record=record)[0]
    record = {"key": NULL, "value": NULL, "headers": [], "partition": 7}
    assert "no partition 7" in editor.refusal("send-record", topic=topic, record=record)[0]


# -- groups ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("to", "value", "expected"),
    [
        ("to-earliest", "", 0),
        ("to-latest", "", 10),
        ("to-offset", "4", 4),
        ("shift-by", "-1", 4),
        ("to-datetime", "2000-01-01T00:00:00Z", 0),
        ("by-duration", "1h", 0),
    ],
)
def test_a_group_is_reset_as_previewed(
    editor: Browser, topic: str, broker: BrokerProcess, to: str, value: str, expected: int
) -> None:
    group = unique_name("group")
    produce(broker, topic, 10)
    commit(broker, group, topic, 5, 0)
    values = {"group": group, "topic": topic, "partition": 0, "to": to, "value": value}
    shown = editor.preview("reset-group", **values)
    row = {"what": f"{topic}-0", "before": "5", "after": str(expected)}
    assert shown["rows"] == [row]
    assert committed(broker, group, topic, 2) == [5, 0]
    editor.change("reset-group", **values)
    assert committed(broker, group, topic, 2) == [expected, 0]
    commit(broker, group, topic, 5, 0)
    run_command(shown["command"])
    assert committed(broker, group, topic, 2) == [expected, 0]


def test_a_group_with_members_is_not_reset(
    editor: Browser, topic: str, broker: BrokerProcess
) -> None:
    group = unique_name("busy")
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": group})
    consumer.subscribe([topic])
    values = {"group": group, "topic": topic, "partition": None, "to": "to-latest", "value": ""}
    deadline = time.monotonic() + 120
    while not consumer.assignment():
        consumer.poll(0.2)
        assert time.monotonic() < deadline
    assert "has 1 member" in editor.refusal("reset-group", **values)[0]
    consumer.close()
    bad = {**values, "to": "by-duration", "value": "soon"}
    assert editor.refusal("reset-group", **bad)[1] == "value"
    assert editor.refusal("reset-group", **{**values, "to": "to-nowhere"})[1] == "to"


def test_offsets_of_a_topic_and_a_group_are_deleted(
    editor: Browser, topic: str, broker: BrokerProcess, outside: AdminClient
) -> None:
    group = unique_name("old")
    commit(broker, group, topic, 5, 6)
    shown = editor.preview("delete-offsets", group=group, topic=topic)
    assert [row["before"] for row in shown["rows"]] == ["5", "6"]
    assert shown["confirm"] == group
    editor.change("delete-offsets", group=group, topic=topic)
    assert committed(broker, group, topic, 2) == [-1001, -1001]
    commit(broker, group, topic, 5, 6)
    assert editor.change("delete-group", group=group) == f"deleted group {group}"
    listed = outside.list_consumer_groups().result()
    assert group not in [each.group_id for each in listed.valid]
    assert "does not exist" in editor.refusal("delete-group", group=group)[0]


def test_of_a_change_with_many_rows_the_first_are_shown(
    editor: Browser, topic: str, broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = unique_name("wide")
    commit(broker, group, topic, 5, 6)
    monkeypatch.setattr(change, "_ROWS_SHOWN_MAX", 1)
    shown = editor.preview("delete-offsets", group=group, topic=topic)
    assert ([row["before"] for row in shown["rows"]], shown["rows_count"]) == (["5"], 2)
    editor.change("delete-offsets", group=group, topic=topic)
    assert committed(broker, group, topic, 2) == [-1001, -1001]


# -- transactions ----------------------------------------------------------------------------------


def test_a_hanging_transaction_is_aborted(tmp_path: Path, static: Path) -> None:
    setting, topic = "transaction.partition.verification.enable=false", "orders"
    with BrokerProcess(tmp_path / "data", setting) as broker:
        suwi = Suwi(broker.address)
        suwi.ok("topics", "create", topic)
        transact(broker.address, "copier", topic, COMMIT)
        write_late(suwi, topic, "copier", 2)
        with ConsoleThread(static, allow_changes=True, local=broker.address) as console:
            editor = Browser(console).log_in(console)
            place = {"topic": topic, "partition": 0}
            text, _ = editor.refusal("abort-transaction", **place, start_offset=0)
            assert "no open transaction" in text
            assert editor.preview("abort-transaction", **place, start_offset=2)["confirm"] == topic
            editor.change("abort-transaction", **place, start_offset=2)
        (found,) = suwi.json("explain", topic, 0, 2)
        assert found["transaction"] == "aborted"
        broker.stop()


# -- a cluster that does not answer in time --------------------------------------------------------


def test_a_change_whose_answer_is_lost_may_have_been_made(lines: list[dict[str, Any]]) -> None:
    async def plan(error: Exception, is_reached: bool) -> Plan:
        async def apply() -> None:
            raise error

        if not is_reached:
            raise error
        return Plan("", apply, "done")

    def answer(error: Exception, is_reached: bool = True) -> str:
        applying = _apply(plan(error, is_reached), Order({}, False), {})
        return str(json.loads(asyncio.run(applying).body)["text"])

    caused = Failure("group 'g' was not deleted: request timed out")
    caused.__cause__ = RequestTimedOut("request timed out")
    for error in (TimeoutError(), RequestTimedOut("not done in time"), caused):
        assert "may have been done" in answer(error)
    assert answer(TimeoutError(), is_reached=False) == "no response in time"
    assert answer(Failure("no")) == "no"
    outcomes = [line["outcome"] for line in lines]
    assert outcomes == ["unknown", "unknown", "unknown", "failed", "failed"]

"""Send a record: a new one, or an existing one again, edited or not.

Invariant: bytes that a form would change or hide (no UTF-8, control characters) reach it as base
64, so that what is not edited is sent exactly as it was.
"""

import base64
import json
import shlex
from collections.abc import Sequence
from typing import Any, NamedTuple

from suwi.admin.failure import Failure
from suwi.admin.json_records import BadLine, parse_record
from suwi.admin.topic_descriptions import existing_topic
from suwi.client.partition_sender import ProducerSettings
from suwi.client.producer import Producer
from suwi.console.change import RECORD, BadValue, Plan, PlanRow
from suwi.console.clusters import TIMEOUT_S, ShownCluster
from suwi.console.page import Query
from suwi.console.record_values import is_shown_exactly
from suwi.console.records import find_record
from suwi.model.ids import Offset, TopicPartition

_COMMAND_CHARACTERS_MAX = 16 * 1024


class EditedBytes(NamedTuple):
    form: str
    """`null`, `text` or `base64`."""
    text: str


class EditedHeader(NamedTuple):
    name: EditedBytes
    value: EditedBytes


class EditedRecord(NamedTuple):
    key: EditedBytes
    value: EditedBytes
    headers: Sequence[EditedHeader]
    partition: int | None
    """None: by the key."""


class SentRecord(NamedTuple):
    topic: str
    record: EditedRecord


async def read_edited_record(shown: ShownCluster, query: Query) -> EditedRecord:
    """The record at an offset, to be edited. Raises `Failure` if there is none."""
    topic, offset = query.text("topic"), query.number("offset", 0)
    partition = (await existing_topic(shown.client, topic)).partition(query.number("partition", 0))
    record = await find_record(shown, TopicPartition(topic, partition.index), Offset(offset))
    if record is None:
        raise Failure(f"there is no record at offset {offset} of {topic}-{partition.index}")
    return EditedRecord(
        _edited(record.key),
        _edited(record.value),
        [
            EditedHeader(_edited(name.encode("utf-8", "surrogateescape")), _edited(value))
            for name, value in record.headers
        ],
        partition.index,
    )


def _edited(data: bytes | None) -> EditedBytes:
    if data is None:
        return EditedBytes("null", "")
    if is_shown_exactly(data):
        return EditedBytes("text", data.decode())
    return EditedBytes("base64", base64.b64encode(data).decode())


async def send_record(shown: ShownCluster, asked: SentRecord) -> Plan:
    """The record is parsed from the line that `suwi produce --json` reads."""
    name, edited = asked.topic, asked.record
    headers = [{**_field("name", h.name), **_field("value", h.value)} for h in edited.headers]
    fields = {
        **_field("key", edited.key),
        **_field("value", edited.value),
        "headers": headers,
        **({} if edited.partition is None else {"partition": edited.partition}),
    }
    line = json.dumps(fields, ensure_ascii=False)
    try:
        record = parse_record(line.encode("utf-8", "surrogatepass"))
    except BadLine as error:
        raise BadValue(RECORD, str(error)) from None
    topic = await existing_topic(shown.client, name)
    if record.partition is not None:
        topic.partition(record.partition)

    async def send() -> str:
        settings = ProducerSettings(delivery_timeout_s=TIMEOUT_S, request_timeout_s=TIMEOUT_S)
        async with Producer(shown.client, shown.clock, settings) as producer:
            delivery = await producer.send(
                name,
                record.value,
                key=record.key,
                headers=record.headers,
                partition=record.partition,
            )
        delivered = await delivery
        return f"wrote {delivered.partition}, offset {delivered.offset}"

    command = shown.command("produce", name, options=["--json"])
    if len(line) <= _COMMAND_CHARACTERS_MAX:
        command = f"printf '%s\\n' {shlex.quote(line)} | {command}"
    sizes = {"key": record.key, "value": record.value}
    rows = [
        PlanRow(k, "", "null" if data is None else f"{len(data)} B") for k, data in sizes.items()
    ]
    return Plan(command, send, "", rows)


def _field(name: str, edited: EditedBytes) -> dict[str, Any]:
    match edited.form:
        case "null":
            return {name: None}
        case "text":
            return {name: edited.text}
        case "base64":
            return {f"{name}_base64": edited.text}
    raise BadValue(RECORD, f"{edited.form[:40]!r}: allowed: null, text, base64")

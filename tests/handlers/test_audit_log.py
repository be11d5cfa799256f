"""The audit log: what was changed and refused, by whom; on a full disk the broker goes on."""

import asyncio
import json
import re
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from suwi.client import own_apis
from suwi.env import LocalDisk
from suwi.env.problems import Problems
from suwi.env.slices import run_to_end
from suwi.env.tasks import Tasks
from suwi.handlers import audit_log
from suwi.handlers.audit_log import AuditLog, audited, names_of
from suwi.net.answers import Answer, Exclusive, Reply
from suwi.net.connection import ClientIdentity
from suwi.net.dispatch import Request
from suwi.net.listener import FailedLogIn
from suwi.security.acls import Operation, ResourceType
from suwi.security.authorizer import NO_RULE
from suwi.security.principal import user
from suwi.sim import ManualClock
from suwi.wire.codec import encode_request, encode_response, read_request, reading_response
from suwi.wire.schema import Direction
from suwi.wire.versions import APIS, ApiKey
from tests.raw_client import new_topic
from tests.wire.samples import sampled

CLOCK = ManualClock()
PATIENCE_S = 120


class Setting:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.problems = Problems(CLOCK)
        env = SimpleNamespace(disk=LocalDisk(), clock=CLOCK)
        self.log = AuditLog(cast(Any, env), str(folder / "audit-1"), self.problems)

    def flush(self) -> None:
        asyncio.run(self.log.flush())

    def changes(self) -> list[dict[str, Any]]:
        return self._lines("audit-1.log")

    def refusals(self) -> list[dict[str, Any]]:
        return self._lines("audit-1-refused.log")

    def _lines(self, name: str) -> list[dict[str, Any]]:
        self.flush()
        return [json.loads(line) for line in (self.folder / name).read_text().splitlines()]


@pytest.fixture
def setting(tmp_path: Path) -> Setting:
    return Setting(tmp_path / "new")


def request(api_key: ApiKey, version: int, **fields: Any) -> Request:
    body = encode_request(api_key, version, fields)
    message = read_request(api_key, version, body)
    client = ClientIdentity("L", "10.0.0.7", user("alice"))
    return Request(api_key, version, 1, "me", memoryview(body), message, cast(Any, None), client)


def create(validate_only: bool = False) -> Request:
    topics = [new_topic("a"), new_topic("b")]
    return request(
        ApiKey.CREATE_TOPICS, 5, topics=topics, timeout=1000, validate_only=validate_only
    )


def answer(**codes: int) -> Reply:
    """The response to CreateTopics, with the error code of each topic."""
    topics = [
        {"name": name, "error_code": code, "error_message": None, "configs": ()}
        for name, code in codes.items()
    ]
    return Reply([encode_response(ApiKey.CREATE_TOPICS, 5, {"topics": topics})])


def created(_: Request) -> Reply:
    return answer(a=0, b=36)


async def created_later(asked: Request) -> Reply:
    return created(asked)


def created_exclusively(asked: Request) -> Answer:
    return Exclusive(created_later(asked))


@pytest.mark.parametrize("handler", [created, created_later, created_exclusively])
def test_a_change_is_noted_with_who_what_and_what_became_of_it(
    setting: Setting, handler: Any
) -> None:
    handle = audited({ApiKey.CREATE_TOPICS: handler}, setting.log)[ApiKey.CREATE_TOPICS]

    async def scenario() -> None:
        for asked in (create(), create(validate_only=True)):
            answer: Any = handle(asked)
            if isinstance(answer, Exclusive):
                answer = answer.reply
            if not isinstance(answer, Reply):
                await answer

    asyncio.run(scenario())
    (line,) = setting.changes()
    assert line == {
        "time_ms": CLOCK.now_ms(),
        "principal": "User:alice",
        "host": "10.0.0.7",
        "client_id": "me",
        "request": "CreateTopics",
        "on": ["topic:a", "topic:b"],
        "on_count": 2,
        "outcome": {"ok": 1, "topic_already_exists": 1},
    }


def test_repeated_refusals_are_one_line_with_a_count(setting: Setting) -> None:
    asked = create()
    for name in ("secret", "secret", "other", "secret"):
        setting.log.refused(asked, Operation.CREATE, ResourceType.TOPIC, name, NO_RULE)
    first, second = setting.refusals()
    assert (first["on"], first["outcome"]) == (["topic:secret"], {"refused": 3})
    assert (first["operation"], first["request"]) == ("create", "CreateTopics")
    assert first["reason"] == "no rule allows it"
    assert (second["on"], second["outcome"]) == (["topic:other"], {"refused": 1})


def test_no_secret_is_written(setting: Setting) -> None:
    secret = b"salted-password-of-carol"
    change = {
        "name": "carol",
        "mechanism": 1,
        "iterations": 4096,
        "salt": secret,
        "salted_password": secret,
    }
    asked = request(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, deletions=[], upsertions=[change])
    results = [{"user": "carol", "error_code": 0, "error_message": None}]
    body = encode_response(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, {"results": results})
    setting.log.changed(asked, Reply([body]))
    (line,) = setting.changes()
    assert line["on"] == ["user:carol"]
    assert "salted" not in str(line)


MARKER = {
    "producer_id": 7,
    "producer_epoch": 0,
    "transaction_result": False,
    "topics": [{"name": "orders", "partition_indexes": [3]}],
    "coordinator_epoch": 0,
}


def test_the_end_of_a_transaction_is_noted_if_no_coordinator_has_ended_it(
    setting: Setting,
) -> None:
    api, version = ApiKey.WRITE_TXN_MARKERS, 1
    results = [{"partition_index": 3, "error_code": 0}]
    topics = [{"name": "orders", "partitions": results}]
    body = encode_response(api, version, {"markers": [{"producer_id": 7, "topics": topics}]})
    handle = audited({api: lambda _: Reply([body])}, setting.log)[api]
    of_administrator, of_broker = (request(api, version, markers=[MARKER]) for _ in range(2))
    of_broker.client = of_broker.client._replace(is_peer=True)
    for asked in (of_administrator, of_broker):
        handle(asked)
    (line,) = setting.changes()
    assert (line["principal"], line["request"]) == ("User:alice", "WriteTxnMarkers")
    assert (line["on"], line["outcome"]) == (["transaction:7 in orders-3"], {"ok": 1})


def test_every_change_can_be_formatted() -> None:
    """A request of each kind, as small as possible."""
    fields: dict[int, dict[str, Any]] = {
        ApiKey.CREATE_TOPICS: {"topics": [new_topic("a")], "timeout": 1, "validate_only": False},
        ApiKey.DELETE_TOPICS: {"topics": [{"name": "a", "topic_id": None}], "timeout": 1},
        ApiKey.CREATE_PARTITIONS: {
            "topics": [{"name": "a", "count": 2, "assignments": None}],
            "timeout": 1,
            "validate_only": False,
        },
        ApiKey.ALTER_CONFIGS: {
            "resources": [
                {
                    "resource_type": 2,
                    "resource_name": "a",
                    "configs": [{"name": "k", "value": "hidden"}],
                }
            ],
            "validate_only": False,
        },
        ApiKey.INCREMENTAL_ALTER_CONFIGS: {
            "resources": [
                {
                    "resource_type": 2,
                    "resource_name": "a",
                    "configs": [{"name": "k", "config_operation": 0, "value": "hidden"}],
                }
            ],
            "validate_only": False,
        },
        ApiKey.CREATE_ACLS: {
            "creations": [
                {
                    "resource_type": 99,
                    "resource_name": "a",
                    "resource_pattern_type": 3,
                    "principal": "User:a",
                    "host": "*",
                    "operation": 99,
                    "permission_type": 3,
                }
            ]
        },
        ApiKey.DELETE_ACLS: {
            "filters": [
                {
                    "resource_type_filter": 1,
                    "resource_name_filter": None,
                    "pattern_type_filter": 1,
                    "principal_filter": None,
                    "host_filter": None,
                    "operation": 1,
                    "permission_type": 1,
                }
            ]
        },
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS: {
            "deletions": [{"name": "a", "mechanism": 1}],
            "upsertions": [],
        },
        ApiKey.ALTER_CLIENT_QUOTAS: {
            "entries": [{"entity": [{"entity_type": "user", "entity_name": None}], "ops": []}],
            "validate_only": False,
        },
        ApiKey.ALTER_PARTITION_REASSIGNMENTS: {
            "timeout": 1,
            "topics": [{"name": "a", "partitions": []}],
        },
        ApiKey.ELECT_LEADERS: {"election_type": 0, "topic_partitions": None, "timeout": 1},
        ApiKey.UPDATE_FEATURES: {
            "timeout": 1,
            "feature_updates": [{"feature": "a", "max_version_level": 1, "upgrade_type": 1}],
            "validate_only": False,
        },
        ApiKey.UNREGISTER_BROKER: {"broker_id": 1},
        ApiKey.DELETE_RECORDS: {"topics": [{"name": "a", "partitions": []}], "timeout": 1},
        ApiKey.DELETE_GROUPS: {"groups_names": ["a"]},
        ApiKey.OFFSET_DELETE: {"group_id": "a", "topics": []},
        ApiKey.WRITE_TXN_MARKERS: {"markers": [MARKER]},
    }
    assert set(fields) == set(audit_log.CHANGES)
    for key in audit_log.CHANGES:
        api = ApiKey(key)
        version = {ApiKey.DELETE_TOPICS: 6, ApiKey.UPDATE_FEATURES: 1}.get(api, 0)
        version = max(version, api.served[0])
        named, count = names_of(api, request(api, version, **fields[key]).message)
        assert len(named) == count == (api is not ApiKey.ELECT_LEADERS)
        assert "hidden" not in str(named)


@pytest.mark.parametrize("api", audit_log.CHANGES, ids=lambda key: APIS[key].name)
def test_the_results_of_every_response_are_counted_slice_by_slice(api: int) -> None:
    for version in range(APIS[api].min_version, APIS[api].max_version + 1):
        for seed in range(3):
            _, message, body = sampled(api, version, Direction.RESPONSE, seed)
            assert run_to_end(reading_response(api, version, body)) == message
            results = audit_log._results(api, version, body)
            assert sum(results.values()) == len(re.findall(r"\berror_code=", repr(message)))


@pytest.mark.parametrize(
    ("api", "fields", "named"),
    [
        (
            ApiKey.CREATE_ACLS,
            {
                "creations": [
                    {
                        "resource_type": 2,
                        "resource_name": "orders",
                        "resource_pattern_type": 4,
                        "principal": "User:bob",
                        "host": "10.0.0.9",
                        "operation": 3,
                        "permission_type": 2,
                    }
                ]
            },
            "rule:deny read from 10.0.0.9 for User:bob on prefixed topic:orders",
        ),
        (
            ApiKey.DELETE_ACLS,
            {
                "filters": [
                    {
                        "resource_type_filter": 3,
                        "resource_name_filter": "g",
                        "pattern_type_filter": 3,
                        "principal_filter": None,
                        "host_filter": None,
                        "operation": 1,
                        "permission_type": 3,
                    }
                ]
            },
            "rules:allow any from any for any on literal group:g",
        ),
        (
            ApiKey.ALTER_CLIENT_QUOTAS,
            {
                "entries": [
                    {
                        "entity": [
                            {"entity_type": "user", "entity_name": "bob"},
                            {"entity_type": "client-id", "entity_name": None},
                        ],
                        "ops": [
                            {"key": "producer_byte_rate", "value": 987.0, "remove": False},
                            {"key": "consumer_byte_rate", "value": 0.0, "remove": True},
                        ],
                    }
                ],
                "validate_only": False,
            },
            "quota:-consumer_byte_rate,producer_byte_rate of user:bob client-id:*",
        ),
    ],
    ids=["create acls", "delete acls", "alter quotas"],
)
def test_a_note_says_which_rule_or_quota_was_changed(
    api: ApiKey, fields: dict[str, Any], named: str
) -> None:
    version = max(1, api.served[0])
    assert names_of(api, request(api, version, **fields).message) == ([named], 1)


def test_failed_log_ins_are_noted_with_the_name_that_was_given(setting: Setting) -> None:
    failed = FailedLogIn("OUTSIDE", "OAUTHBEARER", "10.0.0.8", "x" * 1000, "it has expired")
    for _ in range(3):
        setting.log.log_in_failed(failed)
    (line,) = setting.refusals()
    assert line == {
        "time_ms": CLOCK.now_ms(),
        "principal": "User:ANONYMOUS",
        "host": "10.0.0.8",
        "client_id": None,
        "request": "log-in",
        "on": ["listener:OUTSIDE"],
        "mechanism": "OAUTHBEARER",
        "user": "x" * 300,
        "reason": "it has expired",
        "outcome": {"refused": 3},
        "last_ms": CLOCK.now_ms(),
    }


def test_a_topic_that_was_created_automatically_is_noted_with_who_asked(setting: Setting) -> None:
    asked = request(ApiKey.METADATA, 4, topics=[{"name": "t"}], allow_auto_topic_creation=True)
    setting.log.topic_created(asked, "t", asked.client.principal)
    (line,) = setting.changes()
    assert (line["principal"], line["request"]) == ("User:alice", "CreateTopics")
    assert (line["on"], line["outcome"]) == (["topic:t"], {"ok": 1})


def test_files_are_rotated_and_refusals_displace_no_changes(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_log, "FILE_BYTES_MAX", 600)
    setting.log.changed(create(), created(create()))
    for number in range(40):
        setting.log.refused(create(), Operation.CREATE, ResourceType.TOPIC, f"t{number}", NO_RULE)
        setting.flush()
    files = sorted(path.name for path in setting.folder.iterdir())
    refused = "audit-1-refused.log"
    assert files == [refused, *(f"{refused}.{n}" for n in range(1, 10)), "audit-1.log"]
    assert all(path.stat().st_size <= 600 for path in setting.folder.iterdir())
    assert setting.refusals()[-1]["on"] == ["topic:t39"]
    assert len(setting.changes()) == 1


def test_a_request_of_which_nothing_was_done_displaces_no_change(setting: Setting) -> None:
    """Strangers can send as many as they like."""
    for reply in (answer(a=29, b=29), answer(a=17, b=36), answer(), answer(a=0, b=29)):
        setting.log.changed(create(), reply)
    setting.log.refused(create(), Operation.CREATE, ResourceType.TOPIC, "a", NO_RULE)
    refused = [line["outcome"] for line in setting.refusals()]
    assert refused == [
        {"topic_authorization_failed": 2},
        {"invalid_topic_exception": 1, "topic_already_exists": 1},
        {},
        {"refused": 1},
    ]
    (line,) = setting.changes()
    assert line["outcome"] == {"ok": 1, "topic_authorization_failed": 1}


def test_a_line_that_was_cut_off_does_not_spoil_the_next(setting: Setting) -> None:
    setting.folder.mkdir()
    (setting.folder / "audit-1.log").write_text('{"time_ms": 17')
    setting.log.changed(create(), created(create()))
    setting.flush()
    first, second = (setting.folder / "audit-1.log").read_text().splitlines()
    assert (first, json.loads(second)["on"]) == ('{"time_ms": 17', ["topic:a", "topic:b"])


def test_of_a_request_only_names_are_kept(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until a hanging disk answers there may be many notes, and requests may be large."""
    asked, reply = create(), created(create())
    size_bytes = sum(len(cast(bytes, chunk)) for chunk in reply.chunks)
    monkeypatch.setattr(audit_log, "_RESPONSES_BYTES_MAX", 2 * size_bytes)
    before = sys.getrefcount(asked.message)
    for _ in range(3):
        setting.log.changed(asked, reply)
    after = sys.getrefcount(asked.message)
    assert after == before
    done = {"ok": 1, "topic_already_exists": 1}
    assert [line["outcome"] for line in setting.changes()] == [done, done, {"unknown": 1}]
    setting.log.changed(asked, reply)
    assert setting.changes()[-1]["outcome"] == done


def test_the_newest_lines_are_read_over_rotated_files_and_what_was_cut_off(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert newest(setting, 5) == []
    monkeypatch.setattr(audit_log, "FILE_BYTES_MAX", 600)
    for number in range(7):
        setting.log.refused(create(), Operation.CREATE, ResourceType.TOPIC, f"t{number}", NO_RULE)
        setting.flush()
    assert newest(setting, 3) == ["topic:t6", "topic:t5", "topic:t4"]
    path = setting.folder / "audit-1-refused.log"
    with path.open("ab") as file:
        file.write(b'{"time_ms": 17')
    monkeypatch.setattr(audit_log, "_READ_BYTES_MAX", path.stat().st_size + 100)
    assert newest(setting, 100) == ["topic:t6"]


def test_changes_and_refusals_are_read_together(setting: Setting) -> None:
    for number in range(3):
        CLOCK.advance(1)
        setting.log.changed(create(), created(create()))
        CLOCK.advance(1)
        setting.log.refused(create(), Operation.CREATE, ResourceType.TOPIC, f"t{number}", NO_RULE)
        setting.flush()
    assert newest(setting, 4) == ["topic:t2", "topic:a", "topic:t1", "topic:a"]


def newest(setting: Setting, lines_max: int) -> list[str]:
    return [line["on"][0] for line in asyncio.run(setting.log.newest(lines_max))]


def test_what_cannot_be_written_is_a_problem_and_counted_later(setting: Setting) -> None:
    setting.folder.write_text("a file in place of the directory")
    setting.log.refused(create(), Operation.CREATE, ResourceType.TOPIC, "t", NO_RULE)
    setting.flush()
    (problem,) = setting.problems
    assert problem.kind.label == "audit-log-failed"
    setting.folder.unlink()
    setting.log.refused(create(), Operation.CREATE, ResourceType.TOPIC, "u", NO_RULE)
    assert [line.get("lost") for line in setting.refusals()] == [None, 1]
    assert not list(setting.problems)


def test_more_than_can_be_kept_is_counted(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_log, "_NOTES_MAX", 2)
    for number in range(5):
        setting.log.refused(create(), Operation.CREATE, ResourceType.TOPIC, f"t{number}", NO_RULE)
        setting.log.changed(create(), created(create()))
    assert [line.get("lost") for line in setting.refusals()] == [None, None, 3]
    assert [line.get("lost") for line in setting.changes()] == [None, None, 3]


def test_the_directory_is_tried_at_the_start(setting: Setting) -> None:
    async def start() -> None:
        await setting.log.start(Tasks(lambda failure: None, setting.problems))
        await setting.log.stop()

    setting.folder.write_text("a file in place of the directory")
    asyncio.run(start())
    assert {problem.kind.label for problem in setting.problems} == {"audit-log-failed"}
    setting.folder.unlink()
    asyncio.run(start())
    assert not list(setting.problems)


def test_neither_start_nor_stop_waits_for_a_disk_that_hangs(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_log, "_WAIT_S_MAX", 0.1)

    async def scenario() -> None:
        with setting.log._change_files._one_writer:  # as if a write hung
            await setting.log.start(Tasks(lambda failure: None, setting.problems))
            setting.log.changed(create(), created(create()))
            await setting.log.stop()

    asyncio.run(scenario())
    (problem,) = setting.problems
    assert problem.reason == "the disk does not answer"


def test_who_reads_from_a_disk_that_hangs_leaves_threads_to_others(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_log, "_READ_S_MAX", 0.1)

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(2))
        with setting.log._change_files._one_writer:  # as if a write hung
            reading = [setting.log.newest(1) for _ in range(10)]
            for problem in await asyncio.gather(*reading, return_exceptions=True):
                assert str(problem) == "the disk does not answer"
            async with asyncio.timeout(PATIENCE_S):
                assert await loop.run_in_executor(None, lambda: "done") == "done"

    asyncio.run(scenario())


def test_who_asks_for_the_newest_lines_hears_that_the_disk_hangs_before_giving_up() -> None:
    assert audit_log._READ_S_MAX < own_apis._TIMEOUT_S


def test_what_waits_for_a_thread_when_the_broker_stops_is_written(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_log, "_PERIOD_S", 0)
    busy = threading.Event()

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(1))
        await setting.log.start(Tasks(lambda failure: None, setting.problems))
        others = loop.run_in_executor(None, busy.wait)
        setting.log.refused(create(), Operation.CREATE, ResourceType.TOPIC, "t", NO_RULE)
        async with asyncio.timeout(PATIENCE_S):
            while setting.log._refusals:  # noqa: ASYNC110 (nobody else tells it)
                await asyncio.sleep(0.01)
            stopping = asyncio.ensure_future(setting.log.stop())
            await asyncio.sleep(0.01)
            busy.set()
            await stopping
            await others

    asyncio.run(scenario())
    assert [line["on"] for line in setting.refusals()] == [["topic:t"]]


def test_a_change_whose_client_hangs_up_is_noted_as_unknown(setting: Setting) -> None:
    async def never(_: Request) -> Reply:
        await asyncio.Event().wait()
        raise AssertionError

    async def scenario() -> None:
        handle = audited({ApiKey.CREATE_TOPICS: never}, setting.log)[ApiKey.CREATE_TOPICS]
        running = asyncio.ensure_future(cast(Any, handle(create())))
        await asyncio.sleep(0)
        running.cancel()
        await asyncio.wait([running])

    asyncio.run(scenario())
    (line,) = setting.changes()
    assert (line["on"], line["outcome"]) == (["topic:a", "topic:b"], {"unknown": 1})

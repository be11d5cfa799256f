"""A controller that does not decide in time: the client is told, within the time that it gave."""

import asyncio
from collections.abc import Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from suwi.handlers.create_partitions import CreatePartitions
from suwi.handlers.create_topics import CreateTopics
from suwi.handlers.delete_topics import DeleteTopics
from suwi.handlers.elect_leaders import elect_leaders
from suwi.handlers.partition_reassignments import alter_partition_reassignments
from suwi.handlers.update_features import update_features
from suwi.metadata.image import NewTopic
from suwi.model.broker_config import BrokerConfig
from suwi.model.ids import NodeId
from suwi.wire.versions import ApiKey
from tests.handlers.requests import request, response_to


class Undecided:
    """Whatever is asked of it, it does not decide."""

    def __getattr__(self, _name: str) -> Any:
        return self

    async def __call__(self, *_asked: object, **_options: object) -> None:
        await asyncio.Event().wait()


NOBODY: Any = Undecided()
CONFIG: Any = SimpleNamespace(num_partitions=1, default_replication_factor=1)
HANDLERS: dict[ApiKey, Any] = {
    ApiKey.CREATE_TOPICS: CreateTopics(NOBODY, NOBODY, CONFIG, NodeId(1)),
    ApiKey.DELETE_TOPICS: DeleteTopics(NOBODY, NOBODY, BrokerConfig()),
    ApiKey.CREATE_PARTITIONS: CreatePartitions(NOBODY, NOBODY),
    ApiKey.ELECT_LEADERS: partial(elect_leaders, NOBODY),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: partial(alter_partition_reassignments, NOBODY),
    ApiKey.UPDATE_FEATURES: partial(update_features, NOBODY),
}
NEW = {"num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
TWO = [{"name": name, **NEW} for name in "ab"]
GROWN = {"name": "a", "count": 2, "assignments": None}
LED = {"topic": "a", "partitions": [0]}
MOVED = {"partition_index": 0, "replicas": [1]}
ASKED: list[tuple[ApiKey, int, dict[str, Any], str]] = [
    (ApiKey.CREATE_TOPICS, 7, {"topics": TWO, "validate_only": False}, "topics"),
    (ApiKey.DELETE_TOPICS, 5, {"topic_names": ["a", "b"]}, "responses"),
    (ApiKey.CREATE_PARTITIONS, 3, {"topics": [GROWN], "validate_only": False}, "results"),
    (ApiKey.ELECT_LEADERS, 2, {"election_type": 0, "topic_partitions": [LED]}, ""),
    (
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
        1,
        {"topics": [{"name": "a", "partitions": [MOVED]}]},
        "",
    ),
    (ApiKey.UPDATE_FEATURES, 2, {"feature_updates": [], "validate_only": False}, ""),
]


def test_nothing_is_begun_after_the_deadline() -> None:
    begun: list[str] = []

    async def create(new: NewTopic, **_: object) -> None:
        begun.append(new.name)
        await asyncio.Event().wait()

    topics = SimpleNamespace(create=create)
    controller: Any = SimpleNamespace(active=SimpleNamespace(topics=topics))

    async def main() -> None:
        handler = CreateTopics(NOBODY, controller, CONFIG, NodeId(1))
        fields = {"topics": TWO, "validate_only": False, "timeout": 20}
        asked = request(ApiKey.CREATE_TOPICS, 7, fields)
        response = await response_to(asked, handler(asked))
        assert [t.error_code for t in response.topics] == [ErrorCode.request_timed_out] * 2
        assert begun == ["a"]

    asyncio.run(main())


@pytest.mark.parametrize(("api", "version", "fields", "rows"), ASKED)
def test_what_is_not_decided_in_time_is_answered_with_a_timeout(
    api: ApiKey, version: int, fields: Mapping[str, Any], rows: str
) -> None:
    async def main() -> None:
        asked = request(api, version, {**fields, "timeout": 20})
        response = await response_to(asked, HANDLERS[api](asked))
        results = getattr(response, rows) if rows else [response]
        assert results
        assert {result.error_code for result in results} == {ErrorCode.request_timed_out}

    asyncio.run(main())

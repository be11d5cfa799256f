"""A fake cluster with a coordinator of transactions and groups that does as the test says."""

from collections import defaultdict, deque
from typing import Any

from kio.schema.errors import ErrorCode

from suwi.sim import Simulation
from suwi.wire.codec import encode_response, read_request
from suwi.wire.headers import RequestHeader
from suwi.wire.versions import ApiKey, advertised
from tests.client.fakes import PORT, FakeCluster

COORDINATOR = 1
_SERVED = (
    ApiKey.API_VERSIONS,
    ApiKey.METADATA,
    ApiKey.INIT_PRODUCER_ID,
    ApiKey.PRODUCE,
    ApiKey.FIND_COORDINATOR,
    ApiKey.ADD_PARTITIONS_TO_TXN,
    ApiKey.ADD_OFFSETS_TO_TXN,
    ApiKey.END_TXN,
    ApiKey.TXN_OFFSET_COMMIT,
    ApiKey.DELETE_GROUPS,
)
_TOLD = frozenset(_SERVED) - {ApiKey.API_VERSIONS, ApiKey.METADATA, ApiKey.FIND_COORDINATOR}
LOST = -2000
"""Instead of an error code: done, but the connection is closed."""


class FakeTransactions(FakeCluster):
    def __init__(self, simulation: Simulation, *, tv: int = 1, partitions: int = 1) -> None:
        super().__init__(simulation, 2, partitions)
        self.tv = tv
        self.coordinator = COORDINATOR
        self.errors: dict[ApiKey, deque[int]] = defaultdict(deque)
        """The next error codes of an API; then there are none."""
        self.transcript: list[str] = []
        self.id, self.epoch_of_producer = 7, 0
        self.offsets: dict[str, int] = {}

    def _answer(self, node: int, asked: RequestHeader, frame: bytes) -> bytes | None:
        api_key, version, _, _, at = asked
        api = ApiKey(api_key)
        if api not in _TOLD:
            return super()._answer(node, asked, frame)
        if api is ApiKey.PRODUCE:
            self.transcript.append(f"PRODUCE v{version}")
            return super()._answer(node, asked, frame)
        message = read_request(api, version, frame, at)
        told = [api.name, f"v{version}"]
        error = self.errors[api].popleft() if self.errors[api] else 0
        if node != self.coordinator:
            error = ErrorCode.not_coordinator
        fields = getattr(self, f"_{api.name.lower()}")(message, 0 if error == LOST else error, told)
        self.transcript.append(" ".join(told + [str(int(error))] * bool(error)))
        if error == LOST:
            return None
        if api not in (ApiKey.TXN_OFFSET_COMMIT, ApiKey.DELETE_GROUPS):
            fields["error_code"] = error
        return encode_response(api, version, {"throttle_time": 0, **fields})

    def _fields(self, api: ApiKey, message: Any) -> dict[str, Any]:
        if api is ApiKey.API_VERSIONS:
            level = {"name": "transaction.version", "min_version_level": self.tv}
            return {
                "error_code": 0,
                "api_keys": [
                    {"api_key": a.key, "min_version": a.min_version, "max_version": a.max_version}
                    for a in advertised(_SERVED)
                ],
                "throttle_time": 0,
                "finalized_features_epoch": 1,
                "finalized_features": [{**level, "max_version_level": self.tv}],
            }
        if api is ApiKey.FIND_COORDINATOR:
            found = {
                "error_code": ErrorCode.none,
                "error_message": None,
                "node_id": self.coordinator,
                "host": f"b{self.coordinator}",
                "port": PORT,
            }
            keys = [{**found, "key": key} for key in message.coordinator_keys]
            return {"throttle_time": 0, **found, "coordinators": keys}
        return super()._fields(api, message)

    def _init_producer_id(self, message: Any, error: int, told: list[str]) -> dict[str, Any]:
        if message.producer_id >= 0:
            told.append(f"epoch={message.producer_epoch}")
        self.epoch_of_producer += not error
        return {"producer_id": self.id, "producer_epoch": self.epoch_of_producer}

    def _add_partitions_to_txn(self, message: Any, error: int, told: list[str]) -> dict[str, Any]:
        results = []
        for topic in message.v3_and_below_topics:
            told += [f"{topic.name}-{index}" for index in topic.partitions]
            results.append(
                {
                    "name": topic.name,
                    "results_by_partition": [
                        {"partition_index": index, "partition_error_code": error}
                        for index in topic.partitions
                    ],
                }
            )
        return {"results_by_topic_v3_and_below": results}

    def _add_offsets_to_txn(self, message: Any, error: int, told: list[str]) -> dict[str, Any]:
        told.append(message.group_id)
        return {}

    def _txn_offset_commit(self, message: Any, error: int, told: list[str]) -> dict[str, Any]:
        told += [message.group_id, f"generation={message.generation_id}"]
        topics = []
        for topic in message.topics:
            partitions = []
            for each in topic.partitions:
                partitions.append({"partition_index": each.partition_index, "error_code": error})
                self.offsets[f"{topic.name}-{each.partition_index}"] = each.committed_offset
            topics.append({"name": topic.name, "partitions": partitions})
        return {"topics": topics}

    def _delete_groups(self, message: Any, error: int, told: list[str]) -> dict[str, Any]:
        told += message.groups_names
        results = [{"group_id": name, "error_code": error} for name in message.groups_names]
        return {"results": results}

    def _end_txn(self, message: Any, error: int, told: list[str]) -> dict[str, Any]:
        direction = "commit" if message.committed else "abort"
        told += [direction, f"epoch={message.producer_epoch}"]
        if self.tv == 2 and not error and message.producer_epoch == self.epoch_of_producer:
            self.epoch_of_producer += 1
        return {"producer_id": self.id, "producer_epoch": self.epoch_of_producer}

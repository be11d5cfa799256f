"""The follower's side of a fetch session (KIP-227): only changed partitions are sent again.

Pure: `request` computes what to send for the wanted partitions, `answered` processes the response.
"""

from collections.abc import Mapping
from uuid import UUID

from kio.schema.errors import ErrorCode

from suwi.wire.fetch_request import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic
from suwi.wire.fetch_response import FetchResponse

Key = tuple[UUID, int]
"""A topic's id and a partition's index."""

_INITIAL_EPOCH = 0
_EPOCH_MAX = 2**31 - 1


class FetchSessionHandler:
    def __init__(self) -> None:
        self._id = 0
        self._epoch = _INITIAL_EPOCH
        self._sent: dict[Key, FetchPartition] = {}

    def request(
        self, wanted: Mapping[Key, FetchPartition]
    ) -> tuple[list[FetchTopic], list[ForgottenTopic], int, int]:
        """Returns the topics to fetch and to forget, the session id and the session epoch."""
        if self._epoch == _INITIAL_EPOCH:
            changed, forgotten = dict(wanted), []
        else:
            changed = {key: part for key, part in wanted.items() if self._sent.get(key) != part}
            forgotten = [key for key in self._sent if key not in wanted]
        self._sent = dict(wanted)
        topics: dict[UUID, list[FetchPartition]] = {}
        for (topic_id, _), part in changed.items():
            topics.setdefault(topic_id, []).append(part)
        removed: dict[UUID, list[int]] = {}
        for topic_id, index in forgotten:
            removed.setdefault(topic_id, []).append(index)
        return (
            [FetchTopic(None, topic_id, parts) for topic_id, parts in topics.items()],
            [ForgottenTopic(None, topic_id, parts) for topic_id, parts in removed.items()],
            self._id,
            self._epoch,
        )

    def answered(self, response: FetchResponse) -> None:
        if response.error_code != ErrorCode.none:
            self.restart()
        elif response.session_id == 0:
            self._id, self._epoch = 0, _INITIAL_EPOCH  # The leader has no free session slot.
        else:
            self._id = response.session_id
            self._epoch = 1 if self._epoch == _EPOCH_MAX else self._epoch + 1

    def restart(self) -> None:
        """Send a full request next time. The id is kept so that the leader can remove it."""
        self._epoch = _INITIAL_EPOCH
        self._sent.clear()


def fetch_request(
    session: FetchSessionHandler,
    wanted: Mapping[Key, FetchPartition],
    *,
    replica_id: int,
    replica_epoch: int,
    wait_ms_max: int,
    bytes_min: int,
    bytes_max: int,
) -> FetchRequest:
    topics, forgotten, session_id, epoch = session.request(wanted)
    return FetchRequest(
        wait_ms_max,
        bytes_min,
        bytes_max,
        topics,
        session_id=session_id,
        session_epoch=epoch,
        forgotten=forgotten,
        replica_id=replica_id,
        replica_epoch=replica_epoch,
    )

"""The follower's side of a fetch session (KIP-227): only what changed is asked again.

Pure: `request` says what to send for what is wanted, `answered` takes in the outcome.
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


class FetchSession:
    def __init__(self) -> None:
        self._id = 0
        self._epoch = _INITIAL_EPOCH
        self._asked: dict[Key, FetchPartition] = {}

    def request(
        self, wanted: Mapping[Key, FetchPartition]
    ) -> tuple[list[FetchTopic], list[ForgottenTopic], int, int]:
        """Topics to ask for, topics to forget, session id and epoch."""
        if self._epoch == _INITIAL_EPOCH:
            asked, forgotten = dict(wanted), []
        else:
            asked = {key: part for key, part in wanted.items() if self._asked.get(key) != part}
            forgotten = [key for key in self._asked if key not in wanted]
        self._asked = dict(wanted)
        topics: dict[UUID, list[FetchPartition]] = {}
        for (topic_id, _), part in asked.items():
            topics.setdefault(topic_id, []).append(part)
        gone: dict[UUID, list[int]] = {}
        for topic_id, index in forgotten:
            gone.setdefault(topic_id, []).append(index)
        return (
            [FetchTopic(None, topic_id, parts) for topic_id, parts in topics.items()],
            [ForgottenTopic(None, topic_id, parts) for topic_id, parts in gone.items()],
            self._id,
            self._epoch,
        )

    def answered(self, response: FetchResponse) -> None:
        if response.error_code != ErrorCode.none:
            self.restart()
        elif response.session_id == 0:
            self._id, self._epoch = 0, _INITIAL_EPOCH  # The leader has no room for sessions.
        else:
            self._id = response.session_id
            self._epoch = 1 if self._epoch == _EPOCH_MAX else self._epoch + 1

    def restart(self) -> None:
        """Ask for everything next time. The id is kept, so that the leader can forget it."""
        self._epoch = _INITIAL_EPOCH
        self._asked.clear()


def fetch_request(
    session: FetchSession,
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

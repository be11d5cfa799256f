"""Incremental fetch sessions: what they cache, and how much."""

import pytest

from suwi.handlers.fetch_session_cache import FetchSession, FetchSessionCache
from suwi.model.errors import FetchSessionIdNotFound
from suwi.sim.random import SimRandom
from suwi.wire.fetch_request import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic
from suwi.wire.fetch_response import EpochEnd, FetchedPartition

HALF = 50


def request(
    topic: str, first: int, count: int, *, session: FetchSession | None = None, forget: int = 0
) -> FetchRequest:
    asked = [FetchPartition(first + n, -1, 0, -1, -1, 1) for n in range(count)]
    return FetchRequest(
        0,
        1,
        1,
        [FetchTopic(topic, None, asked)],
        session_id=session.id if session else 0,
        session_epoch=session.epoch if session else 0,
        forgotten=[ForgottenTopic(topic, None, range(forget))] if forget else (),
    )


def opened(
    sessions: FetchSessionCache, request: FetchRequest, now_s: float = 0
) -> FetchSession | None:
    return sessions.open(request, uses_topic_ids=False, now_s=now_s)[0]


@pytest.fixture
def sessions() -> FetchSessionCache:
    return FetchSessionCache(10, SimRandom(1), partitions_max=2 * HALF)


def test_partitions_beyond_the_limit_of_all_sessions_get_no_session(
    sessions: FetchSessionCache,
) -> None:
    assert opened(sessions, request("a", 0, HALF)) is not None
    assert opened(sessions, request("b", 0, HALF)) is not None
    assert opened(sessions, request("c", 0, 1)) is None


def test_a_session_that_grows_past_the_limit_is_removed(sessions: FetchSessionCache) -> None:
    session = opened(sessions, request("a", 0, 2 * HALF))
    assert session is not None
    with pytest.raises(FetchSessionIdNotFound):
        opened(sessions, request("a", 2 * HALF, 1, session=session))
    assert len(sessions) == 0
    assert opened(sessions, request("a", 0, 2 * HALF)) is not None


def test_partitions_that_are_forgotten_make_room(sessions: FetchSessionCache) -> None:
    session = opened(sessions, request("a", 0, 2 * HALF))
    assert session is not None
    assert opened(sessions, request("a", 0, 1, session=session, forget=HALF)) is session
    assert opened(sessions, request("b", 0, HALF)) is not None


def test_sessions_that_are_no_longer_used_make_room(sessions: FetchSessionCache) -> None:
    opened(sessions, request("a", 0, HALF))
    opened(sessions, request("b", 0, HALF))
    assert opened(sessions, request("c", 0, 2 * HALF), now_s=119) is None
    assert opened(sessions, request("c", 0, 2 * HALF), now_s=120) is not None
    assert len(sessions) == 1


def test_consumers_make_way_for_the_session_of_a_follower(sessions: FetchSessionCache) -> None:
    followers = [request("a", n, 1)._replace(replica_id=n) for n in range(11)]
    for n in range(10):
        assert opened(sessions, request("c", n, 1)) is not None
    assert opened(sessions, request("d", 0, 1)) is None
    for follower in followers[:10]:
        assert opened(sessions, follower) is not None
    assert len(sessions) == 10
    assert opened(sessions, followers[10]) is None  # no follower loses its session
    assert opened(sessions, request("d", 0, 1)) is None


def test_a_follower_that_had_to_truncate_gets_the_high_watermark_afterwards(
    sessions: FetchSessionCache,
) -> None:
    """Found by the simulation: the follower ignored the high watermark sent with the divergence,
    and the leader never sent it again."""
    session = opened(sessions, request("a", 0, 1))
    assert session is not None
    diverging = FetchedPartition(0, high_watermark=6, diverging_epoch=EpochEnd(1, 6))
    assert session.changed(("a", 0), diverging, has_records=False)
    assert session.changed(("a", 0), FetchedPartition(0, high_watermark=6), has_records=False)
    assert not session.changed(("a", 0), FetchedPartition(0, high_watermark=6), has_records=False)


def test_nobody_uses_or_removes_the_session_of_somebody_else(sessions: FetchSessionCache) -> None:
    def opened_by(owner: str, asked: FetchRequest) -> FetchSession | None:
        return sessions.open(asked, uses_topic_ids=False, now_s=0, owner=owner)[0]

    session = opened_by("alice", request("a", 0, 1))
    assert session is not None
    asked = request("a", 0, 1, session=session)
    with pytest.raises(FetchSessionIdNotFound):
        opened_by("bob", asked)
    for ending in (-1, 0):
        assert opened_by("bob", asked._replace(session_epoch=ending, topics=())) is None
    assert opened_by("alice", asked) is session

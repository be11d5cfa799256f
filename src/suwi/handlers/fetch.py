"""Fetch v4-v18. Waits until min.bytes are readable or max.wait has passed.

v5: log start offset. v7: sessions. v9: epoch check. v11: reading from followers (KIP-392).
v12: diverging epochs. v13: topic ids. v15: the follower's broker epoch (KIP-903).
Followers fetch like consumers, but up to the log end offset; a follower's fetch offset tells the
leader its log end offset. Only an authenticated broker may fetch as a follower.
"""

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from itertools import groupby, islice

from kio.schema.errors import ErrorCode

from suwi.env.slices import free_in_slices, run_to_end
from suwi.handlers.fetch_job import DelayedFetch, FetchSource, Job, LargeFetch, Patience
from suwi.handlers.fetch_session_cache import (
    UPDATED_AT_ONCE,
    FetchSession,
    FetchSessionCache,
    PartitionKey,
    asked_partitions,
)
from suwi.handlers.slices import Sliced, sliced
from suwi.model.errors import BrokerError
from suwi.net.answers import Answer, Exclusive, Reply
from suwi.net.dispatch import Request
from suwi.replica.replica_manager import ReplicaManager
from suwi.replica.replica_selector import ReplicaSelector
from suwi.wire.fetch_request import (
    SESSIONS_FROM,
    TOPIC_IDS_FROM,
    FetchPartition,
    FetchRequest,
    decode_fetch_request,
)
from suwi.wire.fetch_response import FetchedPartition, FetchParts, encode_fetch_response, merged

# A client that wants to wait longer fetches again. A disconnected client whose next requests are
# queued behind this one is noticed by then.
_WAIT_MS_MAX = 300_000
LARGE_PARTITIONS = 128
"""A fetch of more partitions is done in slices: `LargeFetch`."""
_LISTED_AT_ONCE = 4_000


class Fetch:
    def __init__(
        self,
        replicas: ReplicaManager,
        sessions: FetchSessionCache,
        bytes_max: int,
        synced: Callable[[float], Awaitable[None]],
        replica_selector: ReplicaSelector | None = None,
    ) -> None:
        """`synced(timeout_s)` waits until the image shows everything written before the call.

        `replica_selector` chooses the replica a consumer reads from; without it that is the leader.
        """
        self._sessions = sessions
        self._source = FetchSource(replicas, bytes_max, synced, replica_selector, sessions.remove)

    def __call__(self, request: Request) -> Answer:
        version = request.version
        if request.message is not None:  # a large one, decoded in slices
            patience = Patience()
            reply = self._open_and_answer(request, request.message, patience)
            return Exclusive(reply, give_way=patience.end)
        asked = decode_fetch_request(version, request.body)
        if asked.replica_id >= 0 and not request.client.is_peer:
            request.refused_as_broker()
            return run_to_end(_refusing_unauthenticated_follower(version, asked))
        loop = asyncio.get_running_loop()
        try:
            session, is_full = self._sessions.open(
                asked,
                uses_topic_ids=version >= TOPIC_IDS_FROM,
                now_s=loop.time(),
                owner=_owner(request),
            )
        except BrokerError as error:
            return Reply(encode_fetch_response(version, [], error_code=error.code))
        if session is not None:
            size = len(session.partitions)
        else:
            size = sum([len(topic.partitions) for topic in asked.topics])
        if size > LARGE_PARTITIONS:
            return Exclusive(self._answer_large(request, asked, session, is_full, Patience()))
        partitions = list(asked_partitions(asked) if session is None else session.asked())
        job = self._job(request, asked, session, is_full, partitions)
        read_pass = job.read()
        if read_pass.needs_recheck:
            return Exclusive(job.recheck_and_reply(read_pass))
        if job.is_enough(read_pass):
            return job.reply(read_pass)
        wait_ms = min(asked.max_wait_ms, _WAIT_MS_MAX)
        return Exclusive(DelayedFetch(job, wait_ms / 1000, has_news=read_pass.has_news).promise)

    def _job(
        self,
        request: Request,
        asked: FetchRequest,
        session: FetchSession | None,
        is_full: bool,
        partitions: list[tuple[PartitionKey, FetchPartition]],
    ) -> Job:
        client = request.client
        job = Job(
            self._source, request.version, client.listener, asked, session, is_full, partitions
        )
        if not client.is_peer:
            job.request = request
            if request.authorizer is not None:
                job.authorizer = request.authorizer
                job.reads_from = request.connection.reads_from
            if request.quotas is not None:
                job.fetch_quota = request.quotas.fetch
        return job

    async def _open_and_answer(
        self, request: Request, asked: FetchRequest, patience: Patience
    ) -> Reply:
        version, slices = request.version, request.connection.slices
        if asked.replica_id >= 0 and not request.client.is_peer:
            request.refused_as_broker()
            return await slices.run(_refusing_unauthenticated_follower(version, asked))
        now_s = asyncio.get_running_loop().time()
        try:
            opening = self._sessions.opening(
                asked,
                uses_topic_ids=version >= TOPIC_IDS_FROM,
                now_s=now_s,
                owner=_owner(request),
            )
            session, is_full = await slices.run(opening)
        except BrokerError as error:
            return Reply(encode_fetch_response(version, [], error_code=error.code))
        return await self._answer_large(request, asked, session, is_full, patience)

    async def _answer_large(
        self,
        request: Request,
        asked: FetchRequest,
        session: FetchSession | None,
        is_full: bool,
        patience: Patience,
    ) -> Reply:
        partitions: list[tuple[PartitionKey, FetchPartition]] = []
        if session is not None:
            session.large_fetches += 1
        try:
            partitions = await _list_partitions(request, asked, session)
            job = self._job(request, asked, session, is_full, partitions)
            max_wait_s = min(asked.max_wait_ms, _WAIT_MS_MAX) / 1000
            return await LargeFetch(job, max_wait_s, patience).answer()
        finally:
            if session is not None:
                session.large_fetches -= 1
            free_in_slices(partitions)
            for topic in asked.topics:
                free_in_slices(topic.partitions)
            free_in_slices(asked.topics)


def _owner(request: Request) -> Hashable:
    """To whom its fetch session belongs."""
    client = request.client
    return client.principal, client.is_peer


async def _list_partitions(
    request: Request, asked: FetchRequest, session: FetchSession | None
) -> list[tuple[PartitionKey, FetchPartition]]:
    if session is None:
        return [each async for each in sliced(request, asked_partitions(asked), _LISTED_AT_ONCE)]
    try:
        return [each async for each in sliced(request, session.asked(), _LISTED_AT_ONCE)]
    except RuntimeError:  # Another connection uses the same session.
        return list(session.asked())


def _refusing_unauthenticated_follower(version: int, asked: FetchRequest) -> Sliced:
    """Refuse a client that fetches as a replica: its fetch would count as a follower's progress."""
    code = ErrorCode.cluster_authorization_failed
    if version >= SESSIONS_FROM:
        return Reply(encode_fetch_response(version, [], error_code=code))
    parts = FetchParts(version)
    all_partitions = iter(asked_partitions(asked))
    while some := list(islice(all_partitions, UPDATED_AT_ONCE)):
        for topic, partitions in groupby(some, lambda each: each[0][0]):
            parts.add(topic, [FetchedPartition(index, code) for (_, index), _ in partitions])
        yield
    topics = [chunk for topic in parts.topics() for chunk in topic]
    return Reply(merged([parts.start(0), *topics, parts.end(())]))

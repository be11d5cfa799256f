"""The event loop beside single requests: the largest legal ones, and small ones about everything.

Each is sent once to a broker with many partitions, groups and committed offsets, and nothing else
is measured than the callbacks of its loop (`bench.watch`).
"""

from bench.admin import Admin, Topics
from bench.beside import Recorders, metrics_of, recorded, take_all, worst
from bench.clients import Metrics
from bench.homes import made_home
from bench.largest import (
    COMMIT_VERSION,
    OFFSETS_GROUP,
    Asked,
    commit,
    find_coordinator,
    largest,
    of_bytes,
    of_records,
    smallest,
)
from bench.measure import Figure
from bench.plan import StallPlan
from bench.processes import wait_until_idle
from bench.recorders import WatchedHome, idle_heartbeat
from bench.servers import SUWI, Server
from bench.works import make_many, wait
from suwi.wire.codec import read_response
from suwi.wire.headers import read_response_header, request_header
from suwi.wire.versions import ApiKey

JOB = "request: "
"""Begins the names of these jobs."""
_PATIENCE_S = 300


def measure(plan: StallPlan) -> list[Figure]:
    with made_home(WatchedHome) as place, idle_heartbeat() as idle:
        server = place.start()
        topics = make_many(server, plan.many)
        _commit_offsets(server, topics, plan.many)
        recorders: Recorders = {"loop": place.recorder, "idle": idle}
        figures = []
        requests = [*smallest(), *largest(topics, _served(server)), *of_bytes()]
        for asked in [*requests, *of_records(topics)]:
            figures += take_all(
                JOB + asked.name, SUWI, plan, lambda asked=asked: _once(server, recorders, asked)
            )
        return figures


def _once(server: Server, recorders: Recorders, asked: Asked) -> tuple[Metrics, str]:
    wait_until_idle(server.pid)

    def work() -> None:
        with Admin(server.address) as connection:
            connection.socket.settimeout(_PATIENCE_S)
            connection.ask(asked.frame)

    heard, took_s = recorded(recorders, work, 0)
    return {"work_s": took_s, **metrics_of(heard)}, worst(heard)


def _commit_offsets(server: Server, topics: Topics, groups: int) -> None:
    """One group for all partitions, and many groups."""
    first = dict(list(topics.items())[:1])
    with Admin(server.address) as connection:
        for group in [OFFSETS_GROUP, *(f"group-{number}" for number in range(groups))]:
            request = commit(group, topics if group == OFFSETS_GROUP else first)
            connection.ask(find_coordinator(group))  # creates the internal topic
            wait(lambda request=request: _is_committed(connection.ask(request)), "a commit")


def _is_committed(reply: bytes) -> bool:
    """Whether no partition was refused: a coordinator may still be loading."""
    _, body_at = read_response_header(ApiKey.OFFSET_COMMIT, COMMIT_VERSION, reply)
    answer = read_response(ApiKey.OFFSET_COMMIT, COMMIT_VERSION, reply, body_at)
    return not any(each.error_code for topic in answer.topics for each in topic.partitions)


def _served(server: Server) -> set[int]:
    version = 0
    header = request_header(ApiKey.API_VERSIONS, version, 0, "bench")
    with Admin(server.address) as connection:
        reply = connection.ask(len(header).to_bytes(4, "big") + header)
    _, body_at = read_response_header(ApiKey.API_VERSIONS, version, reply)
    answer = read_response(ApiKey.API_VERSIONS, version, reply, body_at)
    return {int(api.api_key) for api in answer.api_keys}

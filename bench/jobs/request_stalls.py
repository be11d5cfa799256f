"""The event loop beside single requests: the largest legal ones, and small ones about everything.

Each is sent once to a broker with many partitions, groups and committed offsets, and nothing else
is measured than the callbacks of its loop (`bench.watch`).
"""

from bench.admin import Admin, Topics
from bench.beside import Recorders, metrics_of, recorded, take_all, worst
from bench.clients import Metrics
from bench.homes import made_home
from bench.largest import OFFSETS_GROUP, Asked, commit, largest, smallest
from bench.measure import Figure
from bench.plan import StallPlan
from bench.processes import wait_until_idle
from bench.recorders import WatchedHome, idle_heartbeat
from bench.servers import SUWI, Server
from bench.works import make_many, pipeline
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
        for asked in [*smallest(), *largest(topics, _served(server))]:
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
    with Admin(server.address) as connection:
        pipeline(connection, [commit(OFFSETS_GROUP, topics)])
        first = dict(list(topics.items())[:1])
        pipeline(connection, [commit(f"group-{number}", first) for number in range(groups)])


def _served(server: Server) -> set[int]:
    version = 0
    header = request_header(ApiKey.API_VERSIONS, version, 0, "bench")
    with Admin(server.address) as connection:
        reply = connection.ask(len(header).to_bytes(4, "big") + header)
    _, body_at = read_response_header(ApiKey.API_VERSIONS, version, reply)
    answer = read_response(ApiKey.API_VERSIONS, version, reply, body_at)
    return {int(api.api_key) for api in answer.api_keys}

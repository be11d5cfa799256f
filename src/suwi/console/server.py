"""Builds the console and serves it until it is stopped: on this machine, or beyond it with TLS.

`console_app` is the application, `serve_console` runs it and says at which address.
"""

import asyncio
import json
import os
import socket
import ssl
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from suwi import __version__
from suwi.admin.failure import Failure
from suwi.admin.json_documents import plain
from suwi.console import (
    acl_changes,
    acls,
    audit_log,
    brokers,
    export,
    group,
    group_changes,
    groups,
    live,
    overview,
    pipelines,
    quota_changes,
    quotas,
    record_changes,
    records,
    replica_changes,
    search,
    series,
    topic,
    topic_changes,
    topics,
    transaction_changes,
    transactions,
)
from suwi.console.access import LOG_IN, Access, Place
from suwi.console.change import Changes, PlanChange
from suwi.console.clusters import ClusterAddress, ShownCluster
from suwi.console.faults import FAULTS, NOT_BREAKABLE, faults_for
from suwi.console.page import Follow, Pages, Read
from suwi.console.sessions import LogIns, OneSession, Public, Refused, Session
from suwi.console.slow_requests import ImpatientProtocol
from suwi.env import Env
from suwi.env.tasks import RESTART, Tasks, cancel_and_wait

HOST = "127.0.0.1"
STATIC = os.path.join(os.path.dirname(__file__), "static")
NOT_BUILT = (
    "the pages of the console are not built: `make setup` builds them where Node.js 20.19 or later "
    "is installed, or run `npm ci && npm run build` in the folder console/"
)
_DEFAULT_PORT = 9480
_HEADER_BYTES_MAX = 16 * 1024
_CONNECTIONS_MAX = 512
_BODY_S_MAX = 10
_STOP_S = 2
PAGES: dict[str, Read] = {
    "acl-check": acls.check_acl,
    "acls": acls.read_acls,
    "audit": audit_log.read_audit,
    "broker": brokers.read_broker,
    "brokers": brokers.read_brokers,
    "edited-record": record_changes.read_edited_record,
    "gap": records.read_gap,
    "group": group.read_group,
    "groups": groups.read_groups,
    "hanging": transactions.read_hanging,
    "overview": overview.read_overview,
    "pipelines": pipelines.read_pipelines,
    "producers": transactions.read_producers,
    "quotas": quotas.read_quotas,
    "reassignments": replica_changes.read_reassignments,
    "record": records.read_record,
    "records": records.read_records,
    "series": series.read_series,
    "topic": topic.read_topic,
    "topics": topics.read_topics,
    "transaction": transactions.read_transaction,
    "transactions": transactions.read_transactions,
}
STREAMS: dict[str, tuple[Follow, type]] = {
    "live": (live.follow_live, live.LiveStep),
    "search": (search.search_records, search.SearchEvent),
    "tail": (records.follow_tail, records.TailEvent),
}
"""Streams that are no pages, with the type of their events."""
CHANGES: dict[str, PlanChange] = {
    "abort-transaction": transaction_changes.abort_transaction,
    "add-acl": acl_changes.add_acl,
    "add-partitions": topic_changes.add_partitions,
    "cancel-reassignment": replica_changes.cancel_reassignment,
    "create-topic": topic_changes.create_topic,
    "delete-group": group_changes.delete_group,
    "delete-offsets": group_changes.delete_offsets,
    "delete-records": topic_changes.delete_records,
    "delete-topic": topic_changes.delete_topic,
    "drain-broker": replica_changes.drain_broker,
    "elect-leaders": replica_changes.elect_leaders,
    "move-replicas": replica_changes.move_replicas,
    "remove-acl": acl_changes.remove_acl,
    "remove-quota": quota_changes.remove_quota,
    "reset-group": group_changes.reset_group,
    "send-record": record_changes.send_record,
    "set-configs": topic_changes.set_configs,
    "set-quota": quota_changes.set_quota,
}


class Console(NamedTuple):
    """What the front end needs to begin."""

    version: str
    clusters: Sequence[str]
    user: str | None
    """Who has logged in; None on this machine, where nobody has to."""
    allows_changes: bool
    faults: Mapping[str, Sequence[str]]
    """Those that it may cause, by cluster."""


def console_app(
    sessions: OneSession | LogIns,
    place: Place,
    env: Env,
    static: str,
    *,
    allow_changes: bool = False,
) -> Access:
    """Raises `Failure` if the front end is not built."""
    pages, index = Pages(), os.path.join(static, "index.html")
    if not env.disk.exists(index):
        raise Failure(NOT_BUILT)

    async def shell(_: Request) -> Any:
        return FileResponse(index, headers={"cache-control": "no-cache"})

    async def begin(request: Request) -> Any:
        session: Session = request.scope["session"]
        clusters = session.clusters
        faults = {name: faults_for(cluster) for name, cluster in clusters.items()}
        begun = Console(__version__, list(clusters), session.user, allow_changes, faults)
        return JSONResponse(plain(begun))

    changes = Changes(pages.cluster, CHANGES, are_allowed=lambda _: allow_changes)
    breaking = Changes(
        pages.cluster,
        FAULTS,
        are_allowed=lambda shown: shown.breakable is not None,
        if_not=NOT_BREAKABLE,
    )
    routes = [
        Route("/", shell),
        Route("/api/clusters", begin),
        *(
            Route(f"/api/clusters/{{cluster}}/{name}", pages.endpoint(read))
            for name, read in PAGES.items()
        ),
        *(
            Route(f"/api/clusters/{{cluster}}/{name}", pages.stream(follow))
            for name, (follow, _) in STREAMS.items()
        ),
        Route("/api/clusters/{cluster}/export", pages.endpoint(export.export_records)),
        Route("/api/clusters/{cluster}/changes/{change}", changes.answer, methods=["POST"]),
        Route("/api/clusters/{cluster}/faults/{change}", breaking.answer, methods=["POST"]),
        *(_log_in_routes(sessions, place) if isinstance(sessions, LogIns) else ()),
        Mount("/assets", StaticFiles(directory=os.path.join(static, "assets"))),
    ]
    return Access(Starlette(routes=routes), sessions, place)


def _log_in_routes(log_ins: LogIns, place: Place) -> list[Any]:
    async def log_in(request: Request) -> Any:
        try:
            async with asyncio.timeout(_BODY_S_MAX):
                given = json.loads(await request.body())
            user, password = given["user"], given["password"]
            if not isinstance(user, str) or not isinstance(password, str):
                raise TypeError
        except (ValueError, KeyError, TypeError, TimeoutError, RecursionError):
            return JSONResponse({"kind": "bad", "text": "give user and password as JSON"}, 400)
        await log_ins.log_out(request.scope["secret"])  # a session is never taken over
        try:
            address = request.client.host if request.client else ""
            secret = await log_ins.log_in(user, password, address)
        except Refused as refused:
            return JSONResponse({"kind": refused.kind, "text": str(refused)}, refused.status)
        response = JSONResponse({})
        place.set_cookie(response, secret)
        return response

    async def log_out(request: Request) -> Any:
        await log_ins.log_out(request.scope["secret"])
        response = JSONResponse({})
        response.delete_cookie(place.cookie, httponly=True, samesite="strict", secure=place.has_tls)
        return response

    return [
        Route(LOG_IN, log_in, methods=["POST"]),
        Route("/api/logout", log_out, methods=["POST"]),
    ]


async def serve_console(
    addresses: Sequence[ClusterAddress],
    env: Env,
    port: int | None,
    ready: Callable[[str], None],
    *,
    static: str = STATIC,
    public: Public | None = None,
    allow_changes: bool = False,
) -> None:
    """Until Ctrl-C, SIGTERM or a cancellation; `ready` is called with the address.

    Without a port it takes the default one, or another if that is taken.

    Raises `Failure`, OSError.
    """
    host = HOST if public is None else public.host
    listening = _listen(host, _DEFAULT_PORT if port is None else port, else_any=port is None)
    port = listening.getsockname()[1]
    own = {address.name: ShownCluster(address, env) for address in addresses}
    sampled = [ShownCluster(each, env, hour=own[each.name].hour) for each in addresses]
    work = [series.Sampler(cluster).run for cluster in sampled]
    sessions: OneSession | LogIns
    if public is None:
        sessions = OneSession(Session(own, asyncio.get_running_loop().time()), env.random)
        place, address = Place(port), f"http://{HOST}:{port}/?token={sessions.token}"
    else:
        sessions = LogIns(own.values(), env.random)
        work.append(sessions.sweep)
        place = Place(port, public.names, has_tls=True)
        address = f"https://{public.names[0]}:{port}/"
    tasks, running = Tasks(lambda failure: None), []
    try:
        app = console_app(sessions, place, env, static, allow_changes=allow_changes)
        running = [tasks.start(each, name="console", on_failure=RESTART) for each in work]
        tls = None if public is None else public.tls
        await _serve(app, listening, tls, sessions.end_streams, lambda: ready(address))
    finally:
        listening.close()
        await cancel_and_wait(*running)
        await sessions.close()
        for cluster in (*own.values(), *sampled):
            await cluster.client.close()


async def _serve(
    app: Access,
    listening: socket.socket,
    tls: ssl.SSLContext | None,
    end_streams: Callable[[], None],
    ready: Callable[[], None],
) -> None:
    config = uvicorn.Config(
        app,
        log_config=None,
        log_level="error",
        access_log=False,  # it would have the token
        server_header=False,
        proxy_headers=False,
        lifespan="off",
        ws="none",
        h11_max_incomplete_event_size=_HEADER_BYTES_MAX,
        http=ImpatientProtocol,
        limit_concurrency=_CONNECTIONS_MAX,
        timeout_graceful_shutdown=_STOP_S,
    )
    config.load()
    config.ssl = tls
    server = uvicorn.Server(config)
    loop, stop = asyncio.get_running_loop(), server.handle_exit

    def stop_streams_too(*signal: Any) -> None:
        loop.call_soon_threadsafe(end_streams)
        stop(*signal)

    server.handle_exit = stop_streams_too
    ready()
    serving = asyncio.ensure_future(server.serve([listening]))  # owner: this function
    try:
        await asyncio.shield(serving)
    except asyncio.CancelledError:
        end_streams()
        server.should_exit = True
        await serving
        raise


def _listen(host: str, port: int, *, else_any: bool = False) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen()  # whoever reads the address can connect at once
    except OSError as error:
        listening.close()
        if else_any:
            return _listen(host, 0)
        raise Failure(
            f"cannot listen on {host}:{port}: {error.strerror}; choose another port with --port"
        ) from None
    return listening

"""A connection of a process to a cluster, for synchronous code that Spark calls.

`session_for` gives the one session of a process for a connection, so that tasks that follow each
other in a Python worker share sockets, log-ins and what is known of leaders. `run` does one piece
of asynchronous work to its end.
Invariant: a session is used by one thread, and its loop runs only inside `run`.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from suwi.client.cluster import Cluster
from suwi.client.security import connect_securely, read_client_security
from suwi.env import local_env
from suwi.model.config_kinds import BadConfig
from suwi.spark.option_table import KAFKA
from suwi.spark.options import BadOption, Connection

_T = TypeVar("_T")

# A worker serves the queries of one application; more clusters than this at a time are rare.
_SESSIONS_MAX = 4
_sessions: dict[tuple[object, ...], "Session"] = {}


class Session:
    def __init__(self, connection: Connection) -> None:
        """Raises `BadOption`, where files of TLS cannot be used."""
        env = local_env()
        try:
            security = read_client_security(connection.security, env.disk, env.random)
        except BadConfig as error:
            raise BadOption(f"{KAFKA}{error}") from None
        self._loop = asyncio.new_event_loop()
        self.cluster = Cluster(
            connection.bootstrap,
            random=env.random,
            settings=connection.client,
            connect=connect_securely(security, connection.client.client_id),
        )

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        return self._loop.run_until_complete(work)

    def start(self, work: Coroutine[Any, Any, _T]) -> "asyncio.Task[_T]":
        """Begin something whose result a later `run` waits for."""
        task = self._loop.create_task(work)  # owner: a later `run`
        # The first request is sent now, not when the result is asked for.
        self._loop.run_until_complete(asyncio.sleep(0))
        return task

    def close(self) -> None:
        if not self._loop.is_closed():
            self.run(self.cluster.close())
            self._loop.close()


def session_for(connection: Connection) -> Session:
    session = _sessions.pop(connection.key, None)
    if session is None:
        session = Session(connection)
        while len(_sessions) >= _SESSIONS_MAX:
            _sessions.pop(next(iter(_sessions))).close()
    _sessions[connection.key] = session  # the last one used is the last to go
    return session


def close_sessions() -> None:
    """For processes that go on; the sessions of a worker end with it."""
    while _sessions:
        _sessions.popitem()[1].close()

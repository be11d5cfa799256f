"""A run's status, published to the cluster for `suwi pipeline status` and the console.

Without a word in the file it is published to clusters of Suwi only.
Invariant: nothing here fails a run, or keeps a query from going on: what went wrong is logged once.
"""

import asyncio
import logging
import socket
from collections.abc import Iterable

from suwi.client.pipeline_status import PipelineStatus, QueryStatus, is_suwi, publish_status
from suwi.env import Env, local_env
from suwi.spark.options import BadOption, read_connection
from suwi.spark.pipeline.progress import Lag, Watch
from suwi.spark.pipeline.spec import Pipeline, TopicSource, TopicSpec
from suwi.spark.session import Session

log = logging.getLogger(__name__)

_PATIENCE_MS = "5000"
_PUBLISHING_S_MAX = 10
_ERROR_CHARACTERS_MAX = 500


class Publisher:
    """Used from one thread at a time."""

    def __init__(self, pipeline: Pipeline, env: Env | None = None) -> None:
        """Raises `Unresolved`."""
        self._env = env or local_env()
        self._name = pipeline.name
        self._is_wanted = pipeline.status
        self._is_told = False
        self._started_ms = self._env.clock.now_ms()
        self._error: str | None = None
        self._error_ms: int | None = None
        self._session = None if pipeline.status is False else self._session_for(pipeline)

    def _session_for(self, pipeline: Pipeline) -> Session | None:
        """With the cluster that is read, or else the one that is written to."""
        sources = (one.source for one in pipeline.inputs.values())
        for end in (*sources, *pipeline.sinks.values()):
            if isinstance(end, TopicSource | TopicSpec):
                texts = {"kafka.bootstrap.servers": end.servers, **end.options}
                options = {name.lower(): text.value for name, text in texts.items()}
                patience = {"kafka.default.api.timeout.ms": _PATIENCE_MS}
                try:
                    return Session(read_connection({**patience, **options}))
                except BadOption as error:  # The files of TLS may be on executors only.
                    log.info("the status is not published: %s", error)
        return None

    def failed(self, text: str) -> None:
        self._error, self._error_ms = text[:_ERROR_CHARACTERS_MAX], self._env.clock.now_ms()

    def publish(
        self, state: str, queries: Iterable[tuple[Watch, Lag | None]], restarts: int
    ) -> None:
        session = self._session
        if session is None:
            return
        status = PipelineStatus(
            self._name,
            state,
            socket.gethostname(),
            self._started_ms,
            self._env.clock.now_ms(),
            restarts,
            self._error,
            self._error_ms,
            [_of(watch, lag) for watch, lag in queries],
        )
        try:
            if self._is_wanted is None:
                self._is_wanted = session.run(is_suwi(session.cluster))
                if not self._is_wanted:
                    log.info("not a cluster of Suwi: the status is not published")
                    self.close()
                    return
            publishing = publish_status(session.cluster, self._env.clock, status)
            session.run(asyncio.wait_for(publishing, _PUBLISHING_S_MAX))
            self._is_told = False
        except Exception as error:
            if not self._is_told:
                self._is_told = True
                log.warning("status not published", extra={"why": str(error)})

    def close(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None


def _of(watch: Watch, lag: Lag | None) -> QueryStatus:
    return QueryStatus(
        watch.name,
        watch.about,
        None if lag is None else lag.group,
        watch.batch,
        watch.batch_ms,
        watch.rows,
        round(watch.rows_per_s, 1),
        watch.lag_total,
        watch.done_ms,
    )

"""The end of a command's Spark session."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install .[spark]")

from suwi.spark.pipeline.spark_session import close_session


class _Session:
    """What a session of Spark Connect looks like from here: it has no context."""

    stopped = False

    def stop(self) -> None:
        self.stopped = True


def test_a_session_without_a_context_is_stopped_too() -> None:
    session = _Session()
    close_session(cast(Any, session))
    assert session.stopped


def test_pysparks_own_server_is_silent_at_the_end() -> None:
    server = SimpleNamespace(handle_error=lambda *_: pytest.fail("it prints a traceback"))
    session = _Session()
    session.sparkContext = SimpleNamespace(_accumulatorServer=server)  # type: ignore[attr-defined]
    close_session(cast(Any, session))
    server.handle_error(None, None)
    assert session.stopped

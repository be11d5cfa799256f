"""A command's Spark session: what it is given, and its end."""

import socket
import threading
from contextlib import suppress
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install .[spark]")

from py4j.java_gateway import GatewayParameters, JavaGateway
from py4j.protocol import Py4JError

from suwi.spark.spark_session import (
    SHUFFLE_PARTITIONS,
    close_session,
    quiet_errors,
    unknown_settings,
    with_defaults,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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


def test_a_local_session_has_few_shuffle_partitions_unless_somebody_says_how_many() -> None:
    def settings(given: dict[str, str], master: str | None, *outside: str) -> dict[str, str]:
        return with_defaults(given, master, outside.__contains__)

    assert settings({}, "local[2]")[SHUFFLE_PARTITIONS] == "4"
    assert settings({}, None)["spark.master"] == "local[*]"
    assert settings({SHUFFLE_PARTITIONS: "50"}, None)[SHUFFLE_PARTITIONS] == "50"
    assert SHUFFLE_PARTITIONS not in settings({}, "local[2]", SHUFFLE_PARTITIONS)
    assert SHUFFLE_PARTITIONS not in settings({}, "spark://host:7077")


def test_settings_that_spark_does_not_have_are_named(spark: "SparkSession") -> None:
    names = ["spark.sql.shufle.partitions", "spark.sql.ansi.enabled", "spark.executor.memory"]
    meant = {"spark.sql.shufle.partitions": "spark.sql.shuffle.partitions"}
    assert unknown_settings(spark, [*names, "spark.sql.catalog.lake"]) == meant


def test_a_lost_connection_to_java_is_raised_and_not_printed_too(
    caplog: pytest.LogCaptureFixture,
) -> None:
    quiet_errors()
    with socket.create_server(("127.0.0.1", 0)) as java:

        def die() -> None:
            with suppress(OSError):  # the end of the test
                while True:
                    java.accept()[0].close()

        threading.Thread(target=die, daemon=True).start()
        address = GatewayParameters(port=java.getsockname()[1])
        gateway = JavaGateway(gateway_parameters=address)
        with pytest.raises(Py4JError):
            gateway.jvm.java.lang.System.currentTimeMillis()
    with pytest.raises(Py4JError):
        gateway.jvm.java.lang.System.currentTimeMillis()
    assert caplog.records == []

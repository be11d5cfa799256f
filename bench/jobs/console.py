"""What the console costs a broker that is busy, and how long its pages take on a large one.

Only Suwi is measured: the console is a client of it, and the goals are limits of its own.
"""

import http.client
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any
from urllib.parse import urlencode, urlsplit

from confluent_kafka import Producer

from bench.base_env import ROOT
from bench.clients import Metrics
from bench.homes import home
from bench.measure import Figure, take_turns
from bench.plan import CONSOLE, ConsolePlan, Plan
from bench.processes import cpu_s
from bench.servers import SUWI, Server, running
from bench.works import make_many

COST_JOB = "console beside a busy broker"
PAGES = ("overview", "topics")
_TOPIC, _PARTITIONS = "orders", 3
_VALUE = b"x" * 100
_STEP_S = 0.01
_WARM_READS = 5
_OPENED_S = 2
"""For so long after pages were opened their first requests may be under way."""
_PATIENCE_S = 120
_SERIES_S, _REASSIGNMENTS_S = 5, 3  # as in console/src
# What is produced is deleted: the disk is not measured.
_SETTINGS = {"log_retention_check_interval_ms": "1000"}
_TOPIC_SETTINGS = {"segment_bytes": str(16 << 20), "retention_bytes": str(64 << 20)}


def pages_job(partitions: int) -> str:
    return f"pages of the console, {partitions:,} partitions"


def measure(plan: Plan, _brokers: tuple[str, ...]) -> list[Figure]:
    wanted = CONSOLE[plan.name]
    return [*_measure_cost(wanted), *_measure_pages(wanted)]


# -- what it costs -----------------------------------------------------------------------------


def _measure_cost(plan: ConsolePlan) -> list[Figure]:
    with home(SUWI, **_SETTINGS) as place:
        server = place.start()
        server.make_topic(_TOPIC, _PARTITIONS, **_TOPIC_SETTINGS)
        turns = count()
        with _producing(server.address, plan.records_per_s) as produced:

            def compare() -> Metrics:
                """Short sections by turns, each kind as often and in turn first.

                The speed of a core changes within a minute by more than what is looked for.
                """
                sums = {name: _Sums() for name in _SECTIONS}
                for _ in range(plan.rounds):
                    for name in list(_SECTIONS)[:: -1 if next(turns) % 2 else 1]:
                        with _SECTIONS[name](server):
                            time.sleep(_OPENED_S)
                            sums[name].add_section(server, produced, plan.section_s)
                alone = sums["alone"].cpu_percent
                return {
                    **{f"{name}_cpu_percent": found.cpu_percent for name, found in sums.items()},
                    **{
                        f"{name}_records_per_s": found.records_per_s for name, found in sums.items()
                    },
                    "more_percent": 100 * (sums["watched"].cpu_percent / alone - 1),
                    "open_more_percent": 100 * (sums["open"].cpu_percent / alone - 1),
                    "live_more_percent": 100
                    * (sums["live"].cpu_percent / sums["open"].cpu_percent - 1),
                }

            return take_turns(COST_JOB, {SUWI: compare}, plan.repetitions)


@dataclass
class _Sums:
    """What all sections of one kind took together."""

    took_s: float = 0.0
    cpu_s: float = 0.0
    records: int = 0

    def add_section(self, server: Server, produced: list[int], section_s: float) -> None:
        began_s, before_s, before = time.perf_counter(), cpu_s(server.pid), produced[0]
        time.sleep(section_s)
        self.took_s += time.perf_counter() - began_s
        self.cpu_s += cpu_s(server.pid) - before_s
        self.records += produced[0] - before

    @property
    def cpu_percent(self) -> float:
        return 100 * self.cpu_s / self.took_s

    @property
    def records_per_s(self) -> float:
        return self.records / self.took_s


@contextmanager
def _alone(_server: Server) -> Iterator[None]:
    yield


@contextmanager
def _open(server: Server) -> Iterator[None]:
    """A console without a page: it samples what its charts of the last hour show."""
    with console(server):
        yield


@contextmanager
def _watched(server: Server) -> Iterator[None]:
    """Overview, topic page and live tail, with what they ask for again and again."""
    with console(server) as view, ExitStack() as stack:
        for page, query in (
            ("overview", {}),
            ("topic", {"topic": _TOPIC}),
            ("tail", {"topic": _TOPIC}),
        ):
            stack.enter_context(view.following(page, query))
        for page, query, every_s in (
            ("series", {}, _SERIES_S),
            ("series", {"topic": _TOPIC}, _SERIES_S),
            ("reassignments", {}, _REASSIGNMENTS_S),
        ):
            stack.enter_context(view.polling(page, query, every_s))
        yield


@contextmanager
def _live(server: Server) -> Iterator[None]:
    """One of the partitions that are produced to is watched, by the page of its replication."""
    with console(server) as view, view.following("live", {"topic": _TOPIC, "partition": "0"}):
        yield


_SECTIONS = {"watched": _watched, "alone": _alone, "live": _live, "open": _open}


@contextmanager
def _producing(servers: str, records_per_s: int) -> Iterator[list[int]]:
    """A list with the number of acknowledged records."""
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 5, "log_level": 0})
    acknowledged, ends = [0], threading.Event()

    def told(error: object, _message: object) -> None:
        acknowledged[0] += error is None

    def send() -> None:
        due_s = time.perf_counter()
        while not ends.is_set():
            for number in range(round(records_per_s * _STEP_S)):
                producer.produce(_TOPIC, _VALUE, partition=number % _PARTITIONS, on_delivery=told)
            due_s = max(due_s + _STEP_S, time.perf_counter() - _STEP_S)  # it does not catch up
            producer.poll(max(0, due_s - time.perf_counter()))
            time.sleep(max(0, due_s - time.perf_counter()))

    sender = threading.Thread(target=send)
    sender.start()
    try:
        yield acknowledged
    finally:
        ends.set()
        sender.join()
        producer.flush(_PATIENCE_S)


# -- how long its pages take -------------------------------------------------------------------


def _measure_pages(plan: ConsolePlan) -> list[Figure]:
    with home(SUWI) as place:
        server = place.start()
        make_many(server, plan.partitions)

        def read() -> Metrics:
            found: Metrics = {}
            for page in PAGES:
                with console(server) as view:  # a new one, which knows nothing yet
                    found[f"{page}_cold_s"] = view.read_s(page)
                    reads = [view.read_s(page) for _ in range(_WARM_READS)]
                    found[f"{page}_warm_s"] = statistics.median(reads)
            return found

        return take_turns(
            pages_job(plan.partitions), {SUWI: read}, plan.page_repetitions, warm_ups=0
        )


# -- a console and its viewers -----------------------------------------------------------------


class View:
    """A browser with a session."""

    def __init__(self, address: str) -> None:
        parts = urlsplit(address)
        self._at = (parts.hostname or "", parts.port)
        connection = http.client.HTTPConnection(*self._at, timeout=_PATIENCE_S)
        connection.request("GET", f"/?{parts.query}")
        cookie = connection.getresponse().getheader("set-cookie") or ""
        self._headers = {"Cookie": cookie.partition(";")[0]}
        connection.close()

    def _open(self, page: str, query: dict[str, str], accept: str) -> Any:
        connection = http.client.HTTPConnection(*self._at, timeout=_PATIENCE_S)
        path = f"/api/clusters/cluster/{page}?{urlencode(query)}"
        connection.request("GET", path, headers={**self._headers, "Accept": accept})
        response = connection.getresponse()
        if response.status != 200:
            raise RuntimeError(f"{path}: {response.status} {response.read()!r}")
        return response

    def read_s(self, page: str) -> float:
        began_s = time.perf_counter()
        with self._open(page, {}, "application/json") as response:
            response.read()
        return time.perf_counter() - began_s

    @contextmanager
    def following(self, page: str, query: dict[str, str]) -> Iterator[None]:
        response = self._open(page, query, "text/event-stream")
        ends = threading.Event()

        def read() -> None:
            while not ends.is_set() and response.readline():
                pass

        with _thread(read, ends):
            yield
        response.close()

    @contextmanager
    def polling(self, page: str, query: dict[str, str], every_s: float) -> Iterator[None]:
        ends = threading.Event()

        def read() -> None:
            while not ends.is_set():
                with self._open(page, query, "application/json") as response:
                    response.read()
                ends.wait(every_s)

        with _thread(read, ends):
            yield


@contextmanager
def _thread(work: Any, ends: threading.Event) -> Iterator[None]:
    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        ends.set()
        thread.join()


@contextmanager
def console(server: Server) -> Iterator[View]:
    command = [sys.executable, "-m", "suwi", "console", "--broker", server.address, "--port", "0"]
    with running(command, ROOT) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "http://" in line:
                yield View(line.split()[-1])
                return
        raise RuntimeError("the console ended before it printed its address")

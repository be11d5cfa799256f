"""How each kind of work affects a broker's event loop, and a small producer beside it.

Inside Suwi every callback is timed (`bench.watch`); a heartbeat on its loop is compared with one in
an idle process at the same moment. From outside a small producer is measured, once beside the work
and once, right before, without work: the control. Apache Kafka is measured alone, after Suwi, by
the small producer only.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial

from bench.beside import Recorders, beside, metrics_of, take_all, worst
from bench.clients import Metrics, run_client
from bench.homes import Home, home, made_home
from bench.jobs import replica_stalls, request_stalls, startup
from bench.measure import Figure
from bench.plan import STALLS, Plan, StallPlan
from bench.processes import wait_until_idle
from bench.recorders import WatchedHome, idle_heartbeat, pinger
from bench.servers import KAFKA, SUWI
from bench.works import Kind, Stage, kinds_with_few, kinds_with_many, make_many

_PING_TOPIC = "ping"
_KAFKA_RESTARTS = 2
_REQUEST_REPETITIONS = 1  # of some eighty requests; no percentile is taken
_SETTINGS = {
    # Retention and compaction start when there is something to do, not minutes later.
    "log_retention_check_interval_ms": "1000",
    "log_cleaner_backoff_ms": "500",
}


def measure(plan: Plan, brokers: tuple[str, ...]) -> list[Figure]:
    how_much = STALLS[plan.name]
    figures = []
    for system in brokers:  # one after the other, never both at once
        with _watched(system, how_much) as few:
            figures += few.all(kinds_with_few(how_much))
        with _watched(system, how_much, how_much.many) as many:
            figures += many.all(kinds_with_many(how_much))
            figures += many.unclean_restarts()
        if system == SUWI:
            figures += request_stalls.measure(replace(how_much, repetitions=_REQUEST_REPETITIONS))
            figures += replica_stalls.measure(how_much)
    return figures


def unclean_restart_job(plan: StallPlan) -> str:
    return f"restart after kill -9, {plan.many:,} partitions"


@dataclass
class _Watched:
    """A broker, its data, and the processes that monitor it."""

    place: Home
    stage: Stage
    recorders: Recorders

    def all(self, kinds: list[Kind]) -> list[Figure]:
        plan, system = self.stage.plan, self.stage.server.name
        # A JVM compiles what it does often. What Suwi does for the first time may stall it, too.
        warm_ups = plan.kafka_warm_ups if system == KAFKA else 0
        figures = []
        for kind in kinds:
            if system != KAFKA or kind.in_kafka:
                once = partial(self._once, kind)
                figures += take_all(kind.name, system, plan, once, warm_ups=warm_ups)
        return figures

    def _once(self, kind: Kind) -> tuple[Metrics, str]:
        kind.prepare(self.stage)
        wait_until_idle(self.stage.server.pid)
        section_s_min = self.stage.plan.section_s_min
        result = beside(self.recorders, lambda: kind.work(self.stage), section_s_min)
        self.stage.drop_topic()
        return result

    def unclean_restarts(self) -> list[Figure]:
        plan, system = self.stage.plan, self.stage.server.name
        if system == KAFKA:  # a minute each, and no small producer who would need five
            plan = replace(plan, repetitions=min(_KAFKA_RESTARTS, plan.repetitions))
        return take_all(unclean_restart_job(plan), system, plan, self._restart_once)

    def _restart_once(self) -> tuple[Metrics, str]:
        """From the start of the process on; a ping is not possible before it listens."""
        _touch_all(self.stage)
        self.place.kill()
        if not isinstance(self.place, WatchedHome):
            return self._start(), ""
        self.recorders["idle"].begin()
        metrics = self._start()
        heard = {"loop": self.place.recorder.end(), "idle": self.recorders["idle"].end()}
        return metrics | metrics_of(heard), worst(heard)

    def _start(self) -> Metrics:
        self.stage.server, metrics = startup.start_and_produce(self.place, _PING_TOPIC)
        return {"work_s": metrics["first_ack_ms"] / 1000, **metrics}


@contextmanager
def _watched(system: str, plan: StallPlan, partitions: int = 0) -> Iterator[_Watched]:
    """Suwi with its loop monitored; Apache Kafka unchanged."""
    with ExitStack() as stack:
        place: Home
        if system == SUWI:
            place = stack.enter_context(made_home(WatchedHome, **_SETTINGS))
        else:
            place = stack.enter_context(home(system, **_SETTINGS))
        server = place.start()
        server.make_topic(_PING_TOPIC)
        stage = Stage(server, plan, many=make_many(server, partitions))
        recorders: Recorders = {
            "ping": stack.enter_context(pinger(server.address, _PING_TOPIC, plan.ping_every_s))
        }
        if isinstance(place, WatchedHome):
            stage.metrics_url = place.metrics_url
            recorders["loop"] = place.recorder
            recorders["idle"] = stack.enter_context(idle_heartbeat())
        yield _Watched(place, stage, recorders)


def _touch_all(stage: Stage) -> None:
    """A record for every partition, so that every log has to be checked."""
    options = {
        **stage.server.target,
        "topics": list(stage.many),
        "partitions_each": next(iter(stage.many.values())),
        "record_bytes": 100,
        "records": 1,
        "touch_all": True,
    }
    run_client("scatter", options)

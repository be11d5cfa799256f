"""A restart after kill -9 with a gigabyte of log that was never flushed.

The crashed directory is created once and restored before every repetition.
"""

import shutil

from bench.clients import Metrics
from bench.homes import Home, homes
from bench.jobs import raw, startup
from bench.measure import Figure, take_turns
from bench.plan import KIB, Plan
from bench.rig import Run

JOB = "restart after kill -9"
_BATCH_BYTES = 16 * KIB
_TOPIC = "crashed"


def measure(plan: Plan, brokers: tuple[str, ...]) -> list[Figure]:
    with homes(brokers) as places:
        runs = {name: _crashed(plan, place) for name, place in places.items()}
        return take_turns(JOB, runs, plan.restarts, warm_ups=0)


def _crashed(plan: Plan, place: Home) -> Run:
    server = place.start()
    server.make_topic(_TOPIC)
    raw.produce(server, _TOPIC, _BATCH_BYTES, plan.crashed_log_bytes // _BATCH_BYTES)
    place.kill()
    kept = place.data.with_name("crashed")
    shutil.move(place.data, kept)

    def run() -> Metrics:
        shutil.rmtree(place.data, ignore_errors=True)
        shutil.copytree(kept, place.data)
        _, metrics = startup.start_and_produce(place, _TOPIC, _BATCH_BYTES)
        place.kill()
        return metrics

    return run

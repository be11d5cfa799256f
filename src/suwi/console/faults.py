"""Faults of a cluster of this machine, by click on the page of a live partition.

They are changes (`change.py`) that exist only in a console that was started with --faults: for each
there is the command that does the same, and a line in the log. Those of processes are signals and
links (`local_cluster/cluster.py`), those of `suwi serve --faults` go to that process.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from suwi.admin.failure import Failure
from suwi.console.change import Count, Plan, PlanChange
from suwi.console.clusters import ShownCluster, quoted
from suwi.local_cluster.cluster import ClusterError
from suwi.local_cluster.layout import broker_name
from suwi.local_cluster.served_brokers import HOLD_S, ONLY_SERVED, Faults, ServedBrokers
from suwi.local_cluster.zookeeper import CannotRun

NOT_BREAKABLE = "this console breaks nothing; start it with --faults, on the machine of the cluster"
_OF_BROKERS = {
    "fill-disk": "the disk of {} is full",
    "free-disk": "the disk of {} has room",
    "isolate": "{} is cut off",
    "kill": "killed {}",
    "pause": "paused {}",
    "power-loss": "{} has lost power",
    "restart": "{} serves",
    "resume": "resumed {}",
    "slow": "the links of {} are slow",
}
"""What is true of a broker then."""
_BY_ID = ("isolate", "slow")
"""`Faults` has these by the id of the broker, the others by its name."""
_OF_MACHINES = ("fill-disk", "free-disk", "hold", "power-loss")
"""What processes of one machine cannot have each for itself."""


class OfBroker(NamedTuple):
    broker: Count


class OfLink(NamedTuple):
    broker: Count
    other: Count
    one_way: bool


class OfLinks(NamedTuple):
    links: str = "all"


def _plan(
    shown: ShownCluster, fault: str, done: str, act: Callable[[Any], None], *words: object
) -> Plan:
    assert shown.breakable is not None
    faults, directory = shown.breakable
    command = " ".join(["suwi cluster", fault, *map(str, words), "--data", quoted(directory)])
    return Plan(command, partial(_apply, faults, fault, act), done)


async def _apply(faults: Faults, fault: str, act: Callable[[Any], None]) -> None:
    """In a thread: it waits until the fault has its effect."""
    if fault in _OF_MACHINES and not isinstance(faults, ServedBrokers):
        raise Failure(ONLY_SERVED)
    try:
        await asyncio.get_running_loop().run_in_executor(None, act, faults)
    except (ClusterError, CannotRun) as error:
        raise Failure(str(error)) from None


def _of_broker(fault: str, done: str) -> PlanChange:
    async def plan(shown: ShownCluster, asked: OfBroker) -> Plan:
        name = broker_name(asked.broker)
        one = asked.broker if fault in _BY_ID else name

        def act(faults: Faults) -> None:
            getattr(faults, fault.replace("-", "_"))(one)

        return _plan(shown, fault, done.format(name), act, asked.broker)

    return plan


async def cut(shown: ShownCluster, asked: OfLink) -> Plan:
    pair = str(asked.broker), str(asked.other)
    way = ["--one-way"] if asked.one_way else []
    done = f"nothing arrives from {pair[0]} to {pair[1]}" + ("" if way else ", and none back")
    return _plan(shown, "cut", done, lambda to: to.cut([pair], one_way=asked.one_way), *pair, *way)


async def heal(shown: ShownCluster, asked: OfLinks) -> Plan:
    return _plan(shown, "heal", "all links are restored", lambda to: to.heal())


async def hold(shown: ShownCluster, asked: OfLinks) -> Plan:
    done = f"replication is held, for {HOLD_S:g} s at most"
    return _plan(shown, "hold", done, lambda to: to.hold())


def faults_for(shown: ShownCluster) -> list[str]:
    """The names of those that can be caused; none without --faults."""
    if shown.breakable is None:
        return []
    is_served = isinstance(shown.breakable.faults, ServedBrokers)
    return [name for name in FAULTS if is_served or name not in _OF_MACHINES]


FAULTS: dict[str, PlanChange] = {
    "cut": cut,
    "heal": heal,
    "hold": hold,
    **{fault: _of_broker(fault, done) for fault, done in _OF_BROKERS.items()},
}

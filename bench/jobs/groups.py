"""Consumer groups: a large rebalance, many commits, many groups loaded and failed over.

Members and committers speak the protocol themselves: real clients would be the bound. Both brokers
run in one machine and are measured in turns; `fail_over` is for a cluster of processes.
"""

import itertools
import random
import time
from collections.abc import Iterable, Iterator
from functools import partial

from bench import group_messages as messages
from bench.clients import Metrics, run_client
from bench.clients.sockets import Wire
from bench.clusters import ProcessCluster
from bench.homes import Home, homes
from bench.measure import Figure, take_turns
from bench.plan import GROUPS, GroupsPlan, Plan
from bench.processes import rss_mb
from bench.recorders import recorder
from bench.servers import SUWI, Server
from bench.works import pipeline
from suwi.coordinator.runtime import shard_index
from suwi.wire.versions import ApiKey

TOPIC = "orders"
PARTITIONS = 10
_SHARDS = 50
_INITIAL_DELAY_MS = 500
INITIAL_DELAYS_S = 2 * _INITIAL_DELAY_MS / 1000
"""A new group waits once, and once more because members joined meanwhile."""
_PATIENCE_S = 300
_COMMIT_EVERY_S = 0.005
_NAME = "group-{:07}"
_AT_ONCE = 2_000
_numbers = itertools.count()


def rebalance_job(members: int) -> str:
    return f"a group of {members} members rebalances"


def commits_job(committers: int, groups: int) -> str:
    return (
        f"{committers} committers of {groups} groups" if groups > 1 else f"{committers} committers"
    )


def load_job(groups: int) -> str:
    return f"{groups:,} groups with {PARTITIONS} offsets each are loaded"


def measure(plan: Plan, brokers: tuple[str, ...]) -> list[Figure]:
    sizes = GROUPS[plan.name]
    figures: list[Figure] = []
    delay = {"group_initial_rebalance_delay_ms": str(_INITIAL_DELAY_MS)}
    with homes(brokers, **delay) as places:
        servers = {name: place.start() for name, place in places.items()}
        for server in servers.values():
            server.make_topic(TOPIC, PARTITIONS)
            _find_all([server.address])
        runs = {name: partial(_rebalance, sizes, server) for name, server in servers.items()}
        figures += take_turns(rebalance_job(sizes.members), runs, plan.repetitions)
        for groups in (1, sizes.committers):
            runs = {n: partial(_commit, sizes, server, groups) for n, server in servers.items()}
            job = commits_job(sizes.committers, groups)
            figures += take_turns(job, runs, plan.repetitions)
    for groups in sizes.loaded:
        with homes(brokers) as places:
            loads = {name: partial(_load, place) for name, place in places.items()}
            for place in places.values():
                _fill_home(place, groups)
            figures += take_turns(load_job(groups), loads, plan.restarts, warm_ups=0)
    return figures


def fail_over(
    cluster: ProcessCluster, job: str, groups: int, repetitions: int, *, warm_ups: int
) -> list[Figure]:
    """Kill the coordinator of one of so many groups with committed offsets, again and again."""
    cluster.create_topic(TOPIC, partitions=PARTITIONS, replication_factor=3)
    addresses = [cluster.address(broker) for broker in cluster.brokers]
    _find_all(addresses)
    cluster.wait_until_healthy(timeout_s=_PATIENCE_S)
    leaders = [cluster.wait_leader(_OFFSETS, shard) for shard in range(_SHARDS)]
    for broker in cluster.brokers:
        led = [shard for shard, leader in enumerate(leaders) if leader == broker]
        _fill(cluster.address(broker), groups, led)
    fails = {SUWI: partial(_fail_over, cluster, addresses)}
    return take_turns(job, fails, repetitions, warm_ups=warm_ups)


_OFFSETS = "__consumer_offsets"


# -- rebalances and commits --------------------------------------------------------------------


def _rebalance(plan: GroupsPlan, server: Server) -> Metrics:
    options = {"addresses": [server.address], "group": "beside", "topic": TOPIC}
    with recorder("bench.clients.committer", {**options, "every_s": _COMMIT_EVERY_S}) as beside:
        beside.begin()
        took = run_client(
            "group_members",
            {
                **server.target,
                "group": f"large-{next(_numbers)}",
                "members": plan.members,
                "heartbeat_s": plan.heartbeat_s,
            },
        )
        commits = beside.end()
    took["form_s"] -= INITIAL_DELAYS_S
    return took | {f"commit_{name}": commits[name] for name in ("p50_ms", "p99_ms", "max_ms")}


def _commit(plan: GroupsPlan, server: Server, groups: int) -> Metrics:
    """Of one group, and so in one shard, or of groups in nearly as many."""
    options = {"topic": TOPIC, "committers": plan.committers, "commits": plan.commits}
    return run_client("committers", {**server.target, **options, "groups": groups})


# -- many groups -------------------------------------------------------------------------------


def _find_all(addresses: Iterable[str]) -> None:
    """Until every shard has a coordinator that serves."""
    for address in addresses:
        with Wire(address) as wire:
            for group in _one_of_each_shard().values():
                limit = time.monotonic() + _PATIENCE_S
                while True:
                    reply = wire.ask(messages.find_coordinator(group))
                    (found,) = messages.read(ApiKey.FIND_COORDINATOR, reply).coordinators
                    if not found.error_code:
                        break
                    assert time.monotonic() < limit, found
                    time.sleep(0.05)


def _one_of_each_shard() -> dict[int, str]:
    found: dict[int, str] = {}
    for number in itertools.count():
        name = _NAME.format(number)
        found.setdefault(shard_index(name, _SHARDS), name)
        if len(found) == _SHARDS:
            return found
    raise AssertionError


def _fill(address: str, groups: int, shards: Iterable[int]) -> None:
    """Commit offsets of those of so many groups that lie in these shards."""
    wanted = set(shards)
    template = messages.commit(_NAME.format(0), TOPIC, PARTITIONS, 42)
    first = _NAME.format(0).encode()
    names = (_NAME.format(number) for number in range(groups))
    chosen = [name for name in names if shard_index(name, _SHARDS) in wanted]
    with Wire(address) as wire:
        for each in (chosen[at : at + _AT_ONCE] for at in range(0, len(chosen), _AT_ONCE)):
            limit = time.monotonic() + _PATIENCE_S
            while messages.commit_error(
                pipeline(wire, (template.replace(first, name.encode()) for name in each))
            ):
                assert time.monotonic() < limit, "commits are refused"
                time.sleep(0.05)


def _fill_home(place: Home, groups: int) -> None:
    server = place.start()
    server.make_topic(TOPIC, PARTITIONS)
    _find_all([server.address])
    _wait_until_loaded(server)
    _fill(server.address, groups, range(_SHARDS))
    place.stop()


def _load(place: Home) -> Metrics:
    """From when it accepts connections until every group is served."""
    start = time.perf_counter()
    server = place.start()
    started = time.perf_counter()
    _wait_until_loaded(server)
    loaded = time.perf_counter()
    memory = rss_mb(server.pid)
    place.stop()
    return {"load_s": loaded - started, "from_start_s": loaded - start, "rss_mb": memory}


def _wait_until_loaded(server: Server) -> None:
    request = messages.fetch_offsets(list(_one_of_each_shard().values()))
    limit = time.monotonic() + _PATIENCE_S
    with Wire(server.address) as wire:
        while any(
            group.error_code
            for group in messages.read(ApiKey.OFFSET_FETCH, wire.ask(request)).groups
        ):
            assert time.monotonic() < limit, "the groups are not loaded"
            time.sleep(0.005)


def _fail_over(cluster: ProcessCluster, addresses: list[str]) -> Metrics:
    """Kill the coordinator of a group that commits every few milliseconds."""
    shard, group = random.choice(list(_one_of_each_shard().items()))
    options = {"addresses": addresses, "group": group, "topic": TOPIC}
    with recorder("bench.clients.committer", {**options, "every_s": _COMMIT_EVERY_S}) as committer:
        leader = cluster.wait_leader(_OFFSETS, shard)
        committer.begin()
        time.sleep(random.uniform(0.5, 1.5))
        killed = time.monotonic()
        cluster.kill(leader)
        time.sleep(3)
        times = committer.end()["acknowledged_s"]
    cluster.restart(leader)
    cluster.wait_until_healthy(timeout_s=_PATIENCE_S)
    first = next(_after(times, killed), None)
    assert first is not None, "no commit within three seconds"
    return {"first_commit_ms": (first - killed) * 1000}


def _after(times: list[float], moment: float) -> Iterator[float]:
    """Those that were certainly sent after it: the first may have been on its way."""
    return (each for each in times if each > moment + _COMMIT_EVERY_S)

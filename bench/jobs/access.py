"""What access rules and quotas cost a request: a broker with both beside one with neither.

Only Suwi is measured: the goal is a limit of its own. Both brokers are started anew in every
repetition, because one process may be faster than another of the same program. They are measured in
turn with each kind of work, in short rounds, the other one idle: the speed of a core changes within
seconds by more than what is looked for.
"""

import asyncio
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from itertools import count

from bench.clients import Metrics, run_client
from bench.homes import home
from bench.jobs import raw
from bench.measure import Figure, take_turns
from bench.plan import ACCESS, KIB, AccessPlan, Plan
from bench.servers import SUWI, Server
from suwi.client.acls import Acls
from suwi.client.addresses import parse_addresses
from suwi.client.cluster import Cluster
from suwi.client.quotas import ClientQuotas
from suwi.env import SystemRandom
from suwi.security.acls import AclBinding, Operation, PatternType, Permission, ResourceType
from suwi.security.client_quotas import CLIENT_KEYS, USER

JOB = "access rules and quotas"
RULES = 10_000
WORKS = {
    "produce": "µs a request",
    "fetch": "µs a request",
    "librdkafka, produce": "µs a record",
}
_BATCH_BYTES = 16 * KIB
_PIECES = 64
_TOPIC = "measured-"
_PRODUCED, _FETCHED = f"{_TOPIC}in", f"{_TOPIC}out"
_NEVER_REACHED = 1e12
# Without rules every client may add them; those that are added are about topics only.
_GUARDED = {
    "authorizer_class_name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow_everyone_if_no_acl_found": "true",
}


def measure(plan: Plan, _brokers: tuple[str, ...]) -> list[Figure]:
    wanted, turns = ACCESS[plan.name], count()
    with ExitStack() as stack:
        homes = {
            name: stack.enter_context(home(SUWI, **settings))
            for name, settings in (("open", {}), ("guarded", _GUARDED))
        }
        asyncio.run(_guard(homes["guarded"].start()))
        homes["guarded"].stop()

        def compare() -> Metrics:
            found: Metrics = {}
            order = list(homes)[:: -1 if next(turns) % 2 else 1]
            servers = {name: homes[name].start() for name in order}
            for server in servers.values():
                server.make_topic(_PRODUCED)
                raw.load(server, _FETCHED, _PIECES, _BATCH_BYTES)
            for work, cost in _COSTS.items():
                sums = dict.fromkeys(homes, 0.0)
                for number in range(wanted.rounds):
                    for name in order[:: -1 if number % 2 else 1]:
                        sums[name] += cost(servers[name], wanted)
                for name, summed in sums.items():
                    found[f"{work}_{name}_us"] = summed / wanted.rounds
                found[f"{work}_more_percent"] = 100 * (sums["guarded"] / sums["open"] - 1)
            for name, server in servers.items():
                for topic in (_PRODUCED, _FETCHED):
                    server.drop_topic(topic)
                homes[name].stop()
            return found

        return take_turns(JOB, {SUWI: compare}, wanted.repetitions)


async def _guard(server: Server) -> None:
    """Half of the rules are for prefixes. Those of the measured client are among them."""
    rule = partial(AclBinding, ResourceType.TOPIC, host="*", permission=Permission.ALLOW)
    rules = [
        rule(
            pattern_type=PatternType.PREFIXED if number % 2 else PatternType.LITERAL,
            name=f"orders-{number}",
            principal=f"User:app-{number % 100}",
            operation=Operation.READ,
        )
        for number in range(RULES - 1)
    ]
    own = rule(
        pattern_type=PatternType.PREFIXED,
        name=_TOPIC,
        principal="User:ANONYMOUS",
        operation=Operation.ALL,
    )
    async with Cluster(parse_addresses(server.address), random=SystemRandom()) as cluster:
        await Acls(cluster).create([*rules, own])
        quotas = dict.fromkeys(CLIENT_KEYS, _NEVER_REACHED)
        await ClientQuotas(cluster).alter(((USER, None),), quotas)


def _produce(server: Server, plan: AccessPlan) -> float:
    return _cost_us(raw.produce(server, _PRODUCED, _BATCH_BYTES, plan.requests))


def _fetch(server: Server, plan: AccessPlan) -> float:
    return _cost_us(raw.fetch(server, _FETCHED, _PIECES, _BATCH_BYTES, plan.fetches))


def _cost_us(metrics: Metrics) -> float:
    """CPU time of the broker for a request, in microseconds."""
    return float(metrics["server_cpu_us_per_request"])


def _librdkafka(server: Server, plan: AccessPlan) -> float:
    """The same for a record."""
    client = {"work": "produce", "record_bytes": 1_000, "records": plan.records, "settings": {}}
    metrics = run_client("librdkafka", {**server.target, "topic": _PRODUCED, **client})
    return float(metrics["server_cpu_s_per_million"])


_COSTS: dict[str, Callable[[Server, AccessPlan], float]] = dict(
    zip(WORKS, (_produce, _fetch, _librdkafka), strict=True)
)

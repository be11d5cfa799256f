"""What access rules and quotas cost a request: a broker with both beside one with neither.

Only Suwi is measured: the goal is a limit of its own. Both brokers are started anew in every
repetition, because one process may be faster than another of the same program.
"""

import asyncio
from contextlib import ExitStack
from functools import partial
from itertools import count

from bench.clients import Metrics, run_client
from bench.homes import Home, home
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
            """Both in one repetition, in turn first: the ratio is of neighbours."""
            found: Metrics = {}
            for name in list(homes)[:: -1 if next(turns) % 2 else 1]:
                for work, cpu_us in _costs(homes[name], wanted).items():
                    found[f"{work}_{name}_us"] = cpu_us
            for work in WORKS:
                ratio = found[f"{work}_guarded_us"] / found[f"{work}_open_us"]
                found[f"{work}_more_percent"] = 100 * (ratio - 1)
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


def _costs(place: Home, plan: AccessPlan) -> dict[str, float]:
    """CPU time of the broker for each kind of work, in microseconds."""
    server = place.start()
    produced, fetched = f"{_TOPIC}in", f"{_TOPIC}out"
    server.make_topic(produced)
    raw.load(server, fetched, _PIECES, _BATCH_BYTES)
    client = {"work": "produce", "record_bytes": 1_000, "records": plan.records, "settings": {}}
    found = [
        raw.produce(server, produced, _BATCH_BYTES, plan.requests)["server_cpu_us_per_request"],
        raw.fetch(server, fetched, _PIECES, _BATCH_BYTES, plan.fetches)[
            "server_cpu_us_per_request"
        ],
        run_client("librdkafka", {**server.target, "topic": produced, **client})[
            "server_cpu_s_per_million"
        ],
    ]
    for topic in (produced, fetched):
        server.drop_topic(topic)
    place.stop()
    return dict(zip(WORKS, found, strict=True))

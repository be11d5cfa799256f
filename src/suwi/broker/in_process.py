"""Several brokers in one process, with one event loop and one metadata store.

`configs_of` derives each broker's configuration from a common one: node ids count from 1, ports
count up from the configured ones, and each log directory gets a subdirectory per broker.
`start_all` and `stop_all` start and stop them together.
"""

import asyncio
from collections.abc import Sequence

from suwi.broker.broker import Broker
from suwi.model.broker_config import BrokerConfig, parse_broker_config
from suwi.model.config_kinds import BadConfig
from suwi.model.listener_config import ListenerSpec, address, parse_listeners

_REPLICATION_FACTOR_MAX = 3
_PORT_MAX = 65535


class CannotStartBroker(Exception):
    """One of the brokers failed to start; the error is the `__cause__`."""

    def __init__(self, broker: Broker) -> None:
        super().__init__(f"broker {broker.node_id} cannot start")
        self.broker = broker


def configs_of(config: BrokerConfig, brokers: int) -> list[BrokerConfig]:
    """Each broker's configuration. Raises `BadConfig`."""
    if "node.id" in config.given:
        raise BadConfig("node.id: several brokers in one process are numbered from 1; leave it out")
    _refuse_collisions(parse_listeners(config), brokers)
    # With several brokers, topics should be replicated by default.
    replicas = str(min(brokers, _REPLICATION_FACTOR_MAX))
    return [
        parse_broker_config(
            {
                "default.replication.factor": replicas,
                **config.given,
                "node.id": str(number),
                "log.dirs": ",".join(f"{path}/{number}" for path in config.log_dirs),
                **_listener_settings(config, number - 1),
            }
        ).config
        for number in range(1, brokers + 1)
    ]


def _listener_settings(config: BrokerConfig, by: int) -> dict[str, str]:
    specs = parse_listeners(config)
    bound = [f"{s.name}://{address(s.host, _add_to_port(s.port, by))}" for s in specs]
    advertised = [
        f"{s.name}://{address(s.advertised_host, _add_to_port(s.advertised_port or 0, by))}"
        for s in specs
        if s.advertised_host is not None
    ]
    return {
        "listeners": ",".join(bound),
        **({"advertised.listeners": ",".join(advertised)} if advertised else {}),
    }


def _add_to_port(port: int, by: int) -> int:
    return port + by if port else 0  # 0: the system chooses.


def _refuse_collisions(specs: Sequence[ListenerSpec], brokers: int) -> None:
    taken: dict[int, str] = {}
    for spec in specs:
        if not spec.port:
            continue
        last = spec.port + brokers - 1
        if last > _PORT_MAX:
            raise BadConfig(f"listener {spec.name}: {brokers} brokers from port {spec.port} on")
        for port in range(spec.port, last + 1):
            other = taken.setdefault(port, spec.name)
            if other != spec.name:
                raise BadConfig(
                    f"listeners {other} and {spec.name}: their ports must be at least {brokers} "
                    f"apart, as each of {brokers} brokers takes the next one"
                )


async def start_all(brokers: Sequence[Broker]) -> None:
    """Start the brokers; if one fails, stop the others. Raises CannotStartBroker."""
    joining = asyncio.Barrier(len(brokers))

    async def start(broker: Broker) -> None:
        try:
            await broker.start(joining)
        except BaseException:
            await joining.abort()
            raise

    outcomes = await asyncio.gather(*map(start, brokers), return_exceptions=True)
    failed = [
        (broker, outcome)
        for broker, outcome in zip(brokers, outcomes, strict=True)
        if outcome is not None
    ]
    if failed:
        broken = {broker for broker, _ in failed}
        await stop_all([broker for broker in brokers if broker not in broken])
        broker, error = failed[0]
        raise CannotStartBroker(broker) from error


async def stop_all(brokers: Sequence[Broker]) -> bool:
    """Stop the brokers; returns whether all stopped cleanly."""
    ids = [broker.node_id for broker in brokers]
    return all(await asyncio.gather(*(broker.stop(together_with=ids) for broker in brokers)))

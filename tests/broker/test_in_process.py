"""Configurations of several brokers in one process, derived from a common one."""

import pytest

from suwi.broker.in_process import configs_of
from suwi.model.broker_config import BrokerConfig, parse_broker_config
from suwi.model.config_kinds import BadConfig
from suwi.model.listener_config import parse_listeners


def configs(brokers: int = 3, **settings: str) -> list[BrokerConfig]:
    properties = {"log.dirs": "/data", "listeners": "PLAINTEXT://127.0.0.1:9092"}
    given = {key.replace("_", "."): value for key, value in settings.items()}
    return configs_of(parse_broker_config({**properties, **given}).config, brokers)


def test_ids_ports_and_directories_count_up() -> None:
    made = configs()
    assert [config.node_id for config in made] == [1, 2, 3]
    assert [parse_listeners(config)[0].port for config in made] == [9092, 9093, 9094]
    assert [list(config.log_dirs) for config in made] == [["/data/1"], ["/data/2"], ["/data/3"]]


def test_port_0_stays_0() -> None:
    made = configs(listeners="PLAINTEXT://127.0.0.1:0")
    assert [parse_listeners(config)[0].port for config in made] == [0, 0, 0]


def test_advertised_ports_count_up_too() -> None:
    made = configs(advertised_listeners="PLAINTEXT://kafka.test:19092")
    told = [parse_listeners(config)[0] for config in made]
    assert [(spec.advertised_host, spec.advertised_port) for spec in told] == [
        ("kafka.test", 19092),
        ("kafka.test", 19093),
        ("kafka.test", 19094),
    ]


def test_an_ipv6_address_keeps_its_brackets() -> None:
    made = configs(listeners="PLAINTEXT://[::1]:9092")
    assert [parse_listeners(config)[0].address for config in made][2] == "[::1]:9094"


def test_each_data_directory_is_divided() -> None:
    made = configs(2, log_dirs="/a,/b")
    assert [list(config.log_dirs) for config in made] == [["/a/1", "/b/1"], ["/a/2", "/b/2"]]


def test_topics_are_replicated_by_default() -> None:
    assert configs(2)[0].default_replication_factor == 2
    assert configs(5)[0].default_replication_factor == 3
    assert configs(3, default_replication_factor="1")[0].default_replication_factor == 1


def test_other_settings_apply_to_all_brokers() -> None:
    assert [config.num_partitions for config in configs(num_partitions="7")] == [7, 7, 7]


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"node_id": "4"}, "numbered from 1"),
        ({"listeners": "PLAINTEXT://127.0.0.1:65534"}, "3 brokers from port 65534 on"),
        (
            {"listeners": "PLAINTEXT://127.0.0.1:9092,SSL://127.0.0.1:9093"},
            "ports must be at least 3 apart",
        ),
    ],
)
def test_settings_that_cannot_be_derived_are_refused(
    settings: dict[str, str], complaint: str
) -> None:
    with pytest.raises(BadConfig, match=complaint):
        configs(**settings)

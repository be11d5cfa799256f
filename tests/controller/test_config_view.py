"""Values and sources of configuration keys, as in DescribeConfigs."""

from types import MappingProxyType

from suwi.controller.config_view import ConfigView
from suwi.metadata.image import ALL_BROKERS, ClusterImage
from suwi.model.broker_config import parse_broker_config
from suwi.model.config_kinds import ConfigSource
from suwi.model.ids import NodeId

KEY = "log.retention.ms"


def view(**broker_configs: dict[str, str]) -> ConfigView:
    image = ClusterImage(broker_configs=MappingProxyType(broker_configs))
    return ConfigView(image, parse_broker_config({KEY: "3"}).config, NodeId(0))


def test_settings_of_all_brokers_do_not_include_those_of_one_broker() -> None:
    (setting,) = view(**{"0": {KEY: "1"}, ALL_BROKERS: {KEY: "2"}}).of_all_brokers()
    assert (setting.value, setting.source) == ("2", ConfigSource.ALL_BROKERS)
    assert [found.source for found in setting.chain] == [
        ConfigSource.ALL_BROKERS,
        ConfigSource.FILE,
        ConfigSource.DEFAULT,
    ]


def test_the_rack_is_shown_with_the_node_id_replaced() -> None:
    static = parse_broker_config({"broker.rack": "rack-{node}"}).config
    (rack,) = [
        setting
        for setting in ConfigView(ClusterImage(), static, NodeId(7)).of_broker()
        if setting.name == "broker.rack"
    ]
    assert (rack.value, rack.source) == ("rack-7", ConfigSource.FILE)
    assert [found.value for found in rack.chain] == ["rack-7", ""]


def test_dynamic_keys_without_effect_are_shown() -> None:
    settings = view(**{"0": {"num.io.threads": "16"}}).of_broker()
    (setting,) = [s for s in settings if s.name == "num.io.threads"]
    assert (setting.value, setting.source, setting.is_read_only) == (
        "16",
        ConfigSource.BROKER,
        False,
    )
    assert "without effect" in setting.key.doc


def test_a_setting_of_one_broker_takes_precedence_there() -> None:
    settings = view(**{"0": {KEY: "1"}, ALL_BROKERS: {KEY: "2"}}).of_broker()
    (setting,) = [s for s in settings if s.name == KEY]
    assert (setting.value, setting.source) == ("1", ConfigSource.BROKER)

"""Where a value comes from, as DescribeConfigs tells it."""

from types import MappingProxyType

from suwi.controller.config_view import ConfigView, Source
from suwi.metadata.image import ALL_BROKERS, ClusterImage
from suwi.model.broker_config import parse_broker_config
from suwi.model.ids import NodeId

KEY = "log.retention.ms"


def view(**broker_configs: dict[str, str]) -> ConfigView:
    image = ClusterImage(broker_configs=MappingProxyType(broker_configs))
    return ConfigView(image, parse_broker_config({KEY: "3"}).config, NodeId(0))


def test_what_all_brokers_have_is_told_without_what_one_of_them_has() -> None:
    (setting,) = view(**{"0": {KEY: "1"}, ALL_BROKERS: {KEY: "2"}}).of_all_brokers()
    assert (setting.value, setting.source) == ("2", Source.ALL_BROKERS)
    assert [found.source for found in setting.chain] == [
        Source.ALL_BROKERS,
        Source.FILE,
        Source.DEFAULT,
    ]


def test_the_rack_of_each_of_several_brokers_is_told_not_its_template() -> None:
    static = parse_broker_config({"broker.rack": "rack-{node}"}).config
    (rack,) = [
        setting
        for setting in ConfigView(ClusterImage(), static, NodeId(7)).of_broker()
        if setting.name == "broker.rack"
    ]
    assert (rack.value, rack.source) == ("rack-7", Source.FILE)
    assert [found.value for found in rack.chain] == ["rack-7", ""]


def test_keys_without_effect_are_told_where_they_were_set_while_running() -> None:
    settings = view(**{"0": {"num.io.threads": "16"}}).of_broker()
    (setting,) = [s for s in settings if s.name == "num.io.threads"]
    assert (setting.value, setting.source, setting.is_read_only) == ("16", Source.BROKER, False)
    assert "without effect" in setting.key.doc


def test_what_is_set_for_one_broker_counts_there() -> None:
    settings = view(**{"0": {KEY: "1"}, ALL_BROKERS: {KEY: "2"}}).of_broker()
    (setting,) = [s for s in settings if s.name == KEY]
    assert (setting.value, setting.source) == ("1", Source.BROKER)

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


def test_what_is_set_for_one_broker_counts_there() -> None:
    settings = view(**{"0": {KEY: "1"}, ALL_BROKERS: {KEY: "2"}}).of_broker()
    (setting,) = [s for s in settings if s.name == KEY]
    assert (setting.value, setting.source) == ("1", Source.BROKER)

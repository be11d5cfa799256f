"""UpdateFeatures: which levels of features the controller finalizes."""

import pytest

from suwi.controller.feature_control import FeatureUpdate, UpgradeType, updated
from suwi.metadata.image import (
    FEATURES,
    LIVE,
    BrokerInfo,
    ClusterImage,
    ImageBuilder,
    encode_broker,
    encode_features,
)
from suwi.model.errors import BrokerError, InvalidRequest, InvalidUpdateVersion
from suwi.model.features import (
    BEFORE_FEATURES,
    GROUP_VERSION,
    NEW_CLUSTER,
    SUPPORTED,
    TRANSACTION_VERSION,
    Features,
    UnsupportedFeature,
)
from suwi.model.ids import NodeId

UPGRADE, SAFE, UNSAFE = UpgradeType


def cluster(features: Features | None, *brokers: dict[str, int]) -> ClusterImage:
    entries = {
        f"{LIVE}{node}": encode_broker(BrokerInfo(NodeId(node), (), None, 1, features=supported))
        for node, supported in enumerate(brokers or [dict(SUPPORTED)])
    }
    if features is not None:
        entries[FEATURES] = encode_features(features)
    return ImageBuilder().apply(1, entries)


def test_a_downgrade_and_an_upgrade_each_raise_the_epoch() -> None:
    image = cluster(NEW_CLUSTER)
    lower = updated(image, [FeatureUpdate(TRANSACTION_VERSION, 1, SAFE)])
    assert lower == Features({GROUP_VERSION: 1, TRANSACTION_VERSION: 1}, 2)
    higher = updated(cluster(lower), [FeatureUpdate(TRANSACTION_VERSION, 2, UPGRADE)])
    assert higher == Features({GROUP_VERSION: 1, TRANSACTION_VERSION: 2}, 3)


def test_level_0_removes_a_feature() -> None:
    features = updated(cluster(NEW_CLUSTER), [FeatureUpdate(GROUP_VERSION, 0, UNSAFE)])
    assert GROUP_VERSION not in features.levels
    assert features.level(GROUP_VERSION) == 0


def test_an_update_to_the_current_level_changes_nothing() -> None:
    image = cluster(NEW_CLUSTER)
    assert updated(image, [FeatureUpdate(GROUP_VERSION, 1, UPGRADE)]) == image.features


def test_a_cluster_of_older_brokers_has_consumer_groups_only() -> None:
    image = cluster(None)
    assert image.features.levels == BEFORE_FEATURES
    features = updated(image, [FeatureUpdate(TRANSACTION_VERSION, 2, UPGRADE)])
    assert features == Features({GROUP_VERSION: 1, TRANSACTION_VERSION: 2}, 2)


@pytest.mark.parametrize(
    ("update", "reason"),
    [
        (FeatureUpdate(TRANSACTION_VERSION, 3, UPGRADE), "controller supports the levels 0 to 2"),
        (FeatureUpdate(TRANSACTION_VERSION, -1, SAFE), "controller supports the levels 0 to 2"),
        (FeatureUpdate("metadata.version", 1, UPGRADE), "does not know this feature"),
        (FeatureUpdate(GROUP_VERSION, 0, UPGRADE), "This is a downgrade"),
        (FeatureUpdate(GROUP_VERSION, 0, 9), "upgrade type 9 is unknown"),
    ],
)
def test_an_update_that_cannot_be_made_says_why(update: FeatureUpdate, reason: str) -> None:
    with pytest.raises(InvalidUpdateVersion, match=reason):
        updated(cluster(NEW_CLUSTER), [update])


def test_a_downgrade_cannot_raise_a_level() -> None:
    with pytest.raises(InvalidUpdateVersion, match="cannot raise"):
        updated(cluster(None), [FeatureUpdate(TRANSACTION_VERSION, 1, SAFE)])


def test_a_level_that_one_registered_broker_does_not_support_is_refused() -> None:
    image = cluster(None, dict(SUPPORTED), dict(BEFORE_FEATURES))
    with pytest.raises(InvalidUpdateVersion, match="Broker 1 supports the levels 0 to 0"):
        updated(image, [FeatureUpdate(TRANSACTION_VERSION, 2, UPGRADE)])


def test_one_invalid_update_refuses_them_all() -> None:
    with pytest.raises(InvalidUpdateVersion):
        updated(
            cluster(NEW_CLUSTER),
            [FeatureUpdate(GROUP_VERSION, 0, SAFE), FeatureUpdate(TRANSACTION_VERSION, 9, UPGRADE)],
        )


@pytest.mark.parametrize("updates", [[], [FeatureUpdate(GROUP_VERSION, 1, UPGRADE)] * 2])
def test_a_request_names_each_feature_once(updates: list[FeatureUpdate]) -> None:
    with pytest.raises(InvalidRequest) as refused:
        updated(cluster(NEW_CLUSTER), updates)
    assert isinstance(refused.value, BrokerError)


def test_a_broker_does_not_serve_a_cluster_whose_level_it_does_not_support() -> None:
    with pytest.raises(UnsupportedFeature, match=r"transaction\.version=9"):
        Features({TRANSACTION_VERSION: 9}, 1).check_supported()
    NEW_CLUSTER.check_supported()

"""The version table against kio's schemas."""

import pytest
from kio.index import load_request_schema, load_response_schema

from suwi.wire.versions import APIS, Api, ApiKey, Audience, advertised
from tests.wire.samples import KAFKAS

_ENTRIES = [pytest.param(APIS[key], id=APIS[key].name) for key in KAFKAS]


@pytest.mark.parametrize("api", _ENTRIES)
def test_every_version_has_a_schema_and_the_expected_headers(api: Api) -> None:
    for version in range(api.min_version, api.max_version + 1):
        request = load_request_schema(api.key, version)
        response = load_response_schema(api.key, version)
        assert request.__name__ == f"{api.name}Request"
        assert request.__flexible__ is api.is_flexible(version)
        assert request.__header_schema__.__version__ == 1 + api.is_flexible(version)
        assert response.__header_schema__.__version__ == int(api.response_header_has_tags(version))


def test_produce_is_advertised_from_0_but_served_from_3() -> None:
    produce = APIS[ApiKey.PRODUCE]
    assert produce.advertised_from == 0
    assert not produce.serves(2)
    assert produce.serves(3)
    assert all(api.advertised_from == api.min_version for api in APIS.values() if api.key)


def test_init_producer_id_stops_at_the_released_version() -> None:
    assert APIS[ApiKey.INIT_PRODUCER_ID].max_version == 5


def test_only_handled_apis_for_clients_are_advertised() -> None:
    handled = [ApiKey.METADATA, ApiKey.ALTER_PARTITION, ApiKey.PRODUCE]
    assert [api.key for api in advertised(handled)] == [ApiKey.PRODUCE, ApiKey.METADATA]


def test_apis_that_change_the_cluster_are_for_peers_and_handled_by_the_controller() -> None:
    for_peers = [api for api in APIS.values() if api.audience is Audience.PEERS]
    assert [api.name for api in for_peers] == [
        "AlterPartition",
        "Envelope",
        "BrokerHeartbeat",
        "AllocateProducerIds",
        "ReportLoss",
    ]
    assert all(api.by_controller and not api.is_forwarded for api in for_peers)
    assert not any(api.is_advertised for api in for_peers)


def test_suwis_own_apis_are_never_advertised() -> None:
    assert not any(api.is_advertised for api in APIS.values() if api.key >= 20_000)

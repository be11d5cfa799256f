"""Requests for the benchmark of stalls: of every API, and as large as is legal."""

from bench.largest import arrays_of, commit, largest, largest_fields, smallest
from suwi.env.slices import run_to_end
from suwi.wire.codec import encode_request, is_read_in_slices, reading_request
from suwi.wire.headers import read_request_header
from suwi.wire.versions import APIS, REQUEST_ITEMS_MAX, ApiKey

TOPICS = {"a": 2, "b": 1}
SERVED = {key for key, api in APIS.items() if api.is_advertised}


def test_every_array_of_every_api_has_a_legal_request() -> None:
    paths = 0
    for key in SERVED:
        for path in arrays_of(key):
            fields, items = largest_fields(ApiKey(key), path, list(TOPICS), 300)
            version = APIS[key].max_version
            body = encode_request(key, version, fields)
            paths += 1
            assert items >= 50
            if is_read_in_slices(key):
                run_to_end(reading_request(key, version, body))
    assert paths > 60


def test_the_largest_request_has_nearly_as_many_items_as_are_allowed() -> None:
    (asked,) = (
        each for each in largest(TOPICS, {ApiKey.DELETE_GROUPS}) if each.name.startswith("DeleteG")
    )
    _, version, _, _, body_at = read_request_header(memoryview(asked.frame)[4:])
    message = run_to_end(reading_request(ApiKey.DELETE_GROUPS, version, asked.frame, 4 + body_at))
    assert 0.99 * REQUEST_ITEMS_MAX < len(message.groups_names) <= REQUEST_ITEMS_MAX


def test_small_requests_are_small() -> None:
    assert all(len(asked.frame) < 100 for asked in smallest())
    assert len(commit("g", TOPICS)) < 200

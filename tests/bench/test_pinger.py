"""A stall counts for all records that were due in it, not only for the one in flight."""

import time

from bench.clients.pinger import ping
from bench.messages import PRODUCE_VERSION, batch_of, produce_request
from suwi.wire.headers import response_header
from suwi.wire.produce import PartitionProduced, TopicProduced, encode_produce_response
from suwi.wire.versions import ApiKey


def produced() -> bytes:
    answer = TopicProduced("t", None, [PartitionProduced(0, base_offset=0)])
    header = response_header(ApiKey.PRODUCE, PRODUCE_VERSION, 0)
    return header + encode_produce_response(PRODUCE_VERSION, [answer])


def test_pings_that_become_due_while_one_waits_have_waited_too() -> None:
    stalls = [0.05, 0.0, 0.0]
    request = produce_request("t", batch_of(200)[0], -1)

    def ask(_request: bytes) -> bytes:
        time.sleep(stalls.pop(0))
        return produced()

    took_ms = ping(ask, request, 0.01, lambda: not stalls)
    assert took_ms[0] >= 50
    assert took_ms[1] >= 40
    assert took_ms[2] >= 30

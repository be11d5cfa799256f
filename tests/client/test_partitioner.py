"""Keys map to the same partitions as with the Java client; records without a key stay together."""

import pytest

from suwi.client.partitioner import StickyPartitions, murmur2, partition_of_key
from suwi.sim import SimRandom

# From the tests of Apache Kafka's clients, as signed 32-bit numbers.
HASHES = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@pytest.mark.parametrize("key", HASHES)
def test_the_hash_of_a_key_equals_kafkas(key: bytes) -> None:
    assert murmur2(key) == HASHES[key] % 2**32


def test_a_negative_hash_still_gives_a_partition() -> None:
    assert partition_of_key(b"foobar", 7) == (-790332482 & 0x7FFFFFFF) % 7


def test_records_without_a_key_stay_in_a_partition_until_its_batch_is_complete() -> None:
    sticky = StickyPartitions(SimRandom(1))
    first = sticky.choose("t", [0, 1, 2])
    assert {sticky.choose("t", [0, 1, 2]) for _ in range(20)} == {first}
    sticky.move_on("t", first, [0, 1, 2])
    assert sticky.choose("t", [0, 1, 2]) != first


def test_a_partition_without_a_leader_is_not_chosen() -> None:
    sticky = StickyPartitions(SimRandom(1))
    first = sticky.choose("t", [0, 1])
    assert sticky.choose("t", [1 - first]) == 1 - first


def test_the_only_partition_is_kept() -> None:
    sticky = StickyPartitions(SimRandom(1))
    sticky.choose("t", [0])
    sticky.move_on("t", 0, [0])
    assert sticky.choose("t", [0]) == 0

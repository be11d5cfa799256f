"""Which partition a group belongs to: as in Kafka, else an adopted directory loses its groups."""

import pytest

from suwi.coordinator.runtime import shard_index


@pytest.mark.parametrize(
    ("key", "hash_code"),
    [
        ("", 0),
        ("a", 97),
        ("my-group", -1906497762),
        ("polygenelubricants", -(2**31)),
        ("é", 233),
        ("😀", 1772899),
    ],
)
def test_the_hash_of_a_key_is_that_of_java(key: str, hash_code: int) -> None:
    expected = 0 if hash_code == -(2**31) else abs(hash_code)
    for partitions in (1, 7, 50):
        assert shard_index(key, partitions) == expected % partitions

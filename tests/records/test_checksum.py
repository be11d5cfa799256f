"""The checksum is that of the package it comes from, and of the standard."""

import crc32c as package

from suwi.records.checksum import crc32c


def test_it_is_the_crc_of_the_standard() -> None:
    assert crc32c(b"123456789") == 0xE3069283


def test_it_is_what_the_package_says_of_views_and_with_a_start() -> None:
    data = memoryview(bytes(range(256)) * 300)
    assert crc32c(data[3:-5]) == package.crc32c(data[3:-5])
    assert crc32c(data[1000:], crc32c(data[:1000])) == package.crc32c(data)

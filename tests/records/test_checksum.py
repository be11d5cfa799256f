"""The checksum equals that of its package, and of the standard."""

import crc32c as package

from suwi.records.checksum import crc32c


def test_it_is_the_standard_crc32c() -> None:
    assert crc32c(b"123456789") == 0xE3069283


def test_it_equals_the_packages_function_for_views_and_with_a_start_value() -> None:
    data = memoryview(bytes(range(256)) * 300)
    assert crc32c(data[3:-5]) == package.crc32c(data[3:-5])
    assert crc32c(data[1000:], crc32c(data[:1000])) == package.crc32c(data)

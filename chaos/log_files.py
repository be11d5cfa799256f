"""The log files of a partition's replicas: their content below an offset, and whether it is equal.

`compare` reads the files on disk; the brokers may run but nobody may write.
"""

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

_HEADER = struct.Struct(">qi")
"""Base offset and length of a batch; the length counts the bytes after it."""
_LAST_DELTA_AT = 23
_PRODUCER = struct.Struct(">qh")
_PRODUCER_AT = 43


@dataclass(slots=True)
class Compared:
    size_bytes: int = 0
    """Of one replica of each partition, below the high watermark."""
    differing: list[str] = field(default_factory=list)
    producers: dict[int, int] = field(default_factory=dict)
    """The highest epoch of each producer id; above 0 a client has restarted its sequences."""

    def add(self, partition: str, directories: Mapping[int, Path], watermark: int) -> None:
        contents = {
            broker: b"".join(batches(path, watermark)) for broker, path in directories.items()
        }
        (first, expected), *others = contents.items()
        self.size_bytes += len(expected)
        for broker, content in others:
            if content != expected:
                same = _common_prefix(expected, content)
                self.differing.append(
                    f"{partition} below offset {watermark}: {len(expected)} bytes on broker "
                    f"{first}, {len(content)} on broker {broker}, the same up to byte {same}"
                )
        for batch in batches(directories[first], watermark):
            producer, epoch = _PRODUCER.unpack_from(batch, _PRODUCER_AT)
            self.producers[producer] = max(epoch, self.producers.get(producer, 0))


def batches(directory: Path, watermark: int) -> Iterator[bytes]:
    """The batches whose last offset is below the high watermark, in the order of the files."""
    for path in sorted(directory.glob("*.log")):
        content = path.read_bytes()
        position = 0
        while position + _HEADER.size <= len(content):
            base, length = _HEADER.unpack_from(content, position)
            end = position + _HEADER.size + length
            (last_delta,) = struct.unpack_from(">i", content, position + _LAST_DELTA_AT)
            if base + last_delta >= watermark:
                return
            yield content[position:end]
            position = end


def _common_prefix(one: bytes, other: bytes) -> int:
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[:middle] == other[:middle]:
            low = middle
        else:
            high = middle - 1
    return low

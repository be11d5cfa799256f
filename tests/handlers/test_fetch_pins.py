"""The files of a fetch reply are pinned until it is sent, and released if there is no reply."""

import errno
from types import SimpleNamespace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from suwi.env import FileRegion
from suwi.handlers.fetch_job import Job, LogReadResult, ReadPass
from suwi.metadata.image import ClusterImage
from suwi.model.ids import Offset
from suwi.net.answers import Reply
from suwi.wire.fetch_response import FetchedPartition, decode_fetch_response
from tests.log.kit import Bench, bytes_of

VERSION = 12


class _Asked:
    replica_id = -1


class _Source:
    replicas = SimpleNamespace(image=ClusterImage())


def read_all(*benches: Bench) -> ReadPass:
    """A read of all logs, as partitions of one topic."""
    found = []
    for index, bench in enumerate(benches):
        part = bench.log.read(Offset(0), 1000, bench.log.end_offset, whole_batch=True)
        found.append(LogReadResult(("t", index), FetchedPartition(index, 0, 1, 1, 0), part))
    return ReadPass(1 << 20, found)


def filled(name: str) -> Bench:
    bench = Bench(dir=f"/data/{name}")
    bench.append()
    return bench


def reply_to(read_pass: ReadPass) -> Reply:
    source: Any = _Source()
    asked: Any = _Asked()
    return Job(source, VERSION, "PLAINTEXT", asked, None, True, []).reply(read_pass)


def error_codes(reply: Reply) -> list[int]:
    body = b"".join(
        bytes_of(chunk) if isinstance(chunk, FileRegion) else chunk for chunk in reply.chunks
    )
    (topic,) = decode_fetch_response(VERSION, memoryview(body)).topics
    return [partition.error_code for partition in topic.partitions]


def pins(bench: Bench) -> int:
    return len(bench.files._pins)


def test_a_file_that_cannot_be_opened_is_an_error_of_its_partition_only() -> None:
    first, second = filled("t-0"), filled("t-1")
    read_pass = read_all(first, second)
    second.files.forget(second.path(0))
    second.sim.faults.fail("open", errno.EMFILE, path="*.log")
    reply = reply_to(read_pass)
    assert error_codes(reply) == [ErrorCode.none, ErrorCode.kafka_storage_error]
    assert pins(first) == 1
    assert reply.release is not None
    reply.release()
    assert (pins(first), pins(second)) == (0, 0)


def test_a_reply_that_cannot_be_built_leaves_no_file_pinned() -> None:
    first, second = filled("t-0"), filled("t-1")
    read_pass = read_all(first, second)
    broken: Any = object()
    read_pass.found[1] = read_pass.found[1]._replace(slice=broken)
    with pytest.raises(AttributeError):
        reply_to(read_pass)
    assert pins(first) == 0

"""Frames from bytes, without a connection: any division of the bytes, limits, memory."""

import struct
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from suwi.net.buffer_pool import SHARED_BYTES, BufferPool, KeptBytes
from suwi.net.frame_reader import FrameReader, InvalidFrameSize


class Peer:
    """Sends bytes to a reader and takes the frames, at most so many after each read."""

    def __init__(self, frame_bytes_max: int = 1 << 30, memory_bytes: int = 1 << 30) -> None:
        self.buffers = BufferPool(memory_bytes, poison=True)
        self.reader = FrameReader(self.buffers, self, frame_bytes_max)
        self.frames: list[bytes] = []

    def memory_available(self) -> None:
        self.reader.memory_available()

    def send(self, data: bytes, frames_max: int = 1_000_000) -> None:
        while data:
            buffer = self.reader.get_buffer(is_blocked=False)
            assert len(buffer) > 0
            size = min(len(buffer), len(data))
            buffer[:size] = data[:size]
            data = data[size:]
            if self.reader.received(size):
                self.take(frames_max)

    def send_pieces(self, pieces: list[bytes]) -> None:
        for piece in pieces:
            self.send(piece)

    def take(self, frames_max: int = 1_000_000) -> None:
        reader = self.reader
        is_blocked = False
        for taken, frame in enumerate(reader.frames()):
            if taken == frames_max:
                reader.put_back(frame)
                is_blocked = True
                break
            self.frames.append(bytes(frame))
            frame[:] = b"\xdd" * len(frame)  # it belongs to whoever takes it
        if reader.start < reader.end or reader.held is not None:
            reader.hold(is_blocked, 0.0)


def with_size(payload: bytes) -> bytes:
    return struct.pack(">i", len(payload)) + payload


payloads = st.lists(
    st.builds(
        lambda size, seed: bytes([seed]) * size,
        st.sampled_from([0, 1, 3, 100, 4_000, 60_000, SHARED_BYTES - 4, SHARED_BYTES, 700_000]),
        st.integers(0, 255),
    ),
    max_size=8,
)
cuts = st.lists(st.floats(0, 1), max_size=20)


def divided(stream: bytes, where: list[float]) -> list[bytes]:
    places = [0, *sorted(int(cut * len(stream)) for cut in where), len(stream)]
    return [stream[start:end] for start, end in pairwise(places)]


@given(payloads, cuts)
def test_any_division_of_the_same_bytes_gives_the_same_frames(
    sent: list[bytes], where: list[float]
) -> None:
    peer = Peer()
    peer.send_pieces(divided(b"".join(map(with_size, sent)), where))
    assert peer.frames == sent
    assert peer.reader.held is None
    assert peer.buffers.allocated_bytes == 0


@given(st.lists(st.binary(max_size=50), max_size=30), st.integers(1, 5))
def test_frames_that_are_not_taken_at_once_come_again(sent: list[bytes], at_a_time: int) -> None:
    peer = Peer()
    peer.send(b"".join(map(with_size, sent)), at_a_time)
    taken = len(peer.frames)
    assert taken == min(at_a_time, len(sent))
    while taken < len(sent):
        peer.take(at_a_time)
        assert 0 < len(peer.frames) - taken <= at_a_time
        taken = len(peer.frames)
    assert peer.frames == sent
    assert peer.buffers.allocated_bytes == 0


@given(payloads, cuts)
def test_memory_is_bounded_by_what_was_received(sent: list[bytes], where: list[float]) -> None:
    peer = Peer()
    received_bytes = 0
    for piece in divided(b"".join(map(with_size, sent)), where):
        peer.send(piece)
        received_bytes += len(piece)
        assert peer.buffers.allocated_bytes <= max(8 * 1024, 16 * received_bytes)


@given(
    st.lists(st.binary(max_size=100), max_size=5),
    st.one_of(st.integers(-(2**31), -1), st.integers(101, 2**31 - 1)),
    cuts,
)
def test_frames_before_one_of_an_invalid_size_are_yielded_and_none_after_it(
    sent: list[bytes], size: int, where: list[float]
) -> None:
    peer = Peer(frame_bytes_max=100)
    stream = b"".join(map(with_size, sent)) + struct.pack(">i", size) + with_size(b"after")
    with pytest.raises(InvalidFrameSize, match=f" {size} "):
        peer.send_pieces(divided(stream, where))
    assert peer.frames == sent


def test_a_limit_that_changes_holds_from_the_next_frame_on() -> None:
    peer = Peer(frame_bytes_max=10)
    peer.send(with_size(bytes(10)))
    peer.reader.frame_bytes_max = 20
    peer.send(with_size(bytes(20)))
    with pytest.raises(InvalidFrameSize):
        peer.send(with_size(bytes(21)))


def test_a_reader_without_memory_says_so_until_there_is_some() -> None:
    frame = with_size(bytes(4_000_000))
    first, second = Peer(memory_bytes=1 << 20), Peer()
    second.buffers = first.buffers
    second.reader = FrameReader(first.buffers, second, 1 << 30)

    def send_all(peer: Peer, data: bytes) -> bytes:
        while data and not peer.reader.lacks_memory:
            size = len(peer.reader.get_buffer(is_blocked=False))
            peer.send(data[:size])
            data = data[size:]
        return data

    assert send_all(first, frame[:-1]) == b"", "one may take more than there is"
    rest = send_all(second, frame)
    assert second.reader.lacks_memory
    assert second.frames == []
    first.send(frame[-1:])
    assert first.frames == [frame[4:]]
    assert not second.reader.lacks_memory
    assert send_all(second, rest) == b""
    assert second.frames == [frame[4:]]
    assert first.buffers.allocated_bytes == 0


def test_what_is_held_is_given_back_on_release() -> None:
    peer = Peer()
    peer.send(with_size(bytes(1_000_000))[:500_000])
    assert peer.buffers.allocated_bytes > 0
    peer.reader.release()
    assert peer.buffers.allocated_bytes == 0
    assert peer.reader.start == peer.reader.end


def test_a_frame_that_comes_too_slowly_is_stalled_and_a_steady_one_is_not() -> None:
    peer = Peer()
    frame = with_size(bytes(10_000))
    peer.send(frame[:10])
    assert not peer.reader.is_stalled(9.0, 10_000, 100), "too early to say"
    peer.send(frame[10:5000])
    assert not peer.reader.is_stalled(12.0, 10_000, 100)
    assert not peer.reader.is_stalled(21.0, 10_000, 100)
    assert peer.reader.is_stalled(24.0, 10_000, 100), "what came early does not count for ever"
    peer.send(frame[5000:])
    assert not peer.reader.is_stalled(99.0, 10_000, 100), "nothing is held"


@pytest.mark.parametrize(("size", "is_copied"), [(100, True), (3 << 20, False)])
def test_a_frame_that_is_kept_outlives_the_next_ones_and_a_large_one_is_not_copied(
    size: int, is_copied: bool
) -> None:
    peer = Peer()
    peer.buffers.poison = False
    kept: list[KeptBytes] = []

    def take(frames_max: int = 0) -> None:
        for frame in peer.reader.frames():
            before = peer.buffers.allocated_bytes
            kept.append(peer.reader.keep(frame))
            assert (peer.buffers.allocated_bytes > before) is is_copied
        if peer.reader.start < peer.reader.end or peer.reader.held is not None:
            peer.reader.hold(False, 0.0)

    peer.take = take  # type: ignore[method-assign]
    for number in range(3):
        peer.send(with_size(bytes([number]) * size))
    assert [bytes(each.view) for each in kept] == [bytes([n]) * size for n in range(3)]
    for each in kept:
        each.release()
    assert peer.buffers.allocated_bytes == 0

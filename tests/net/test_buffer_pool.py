"""The pool of receive memory, above all when it is short."""

from suwi.net.buffer_pool import SHARED_BYTES, BufferPool


class Owner:
    def __init__(self, buffers: BufferPool, frame_bytes: int, received_bytes: int) -> None:
        self.buffers = buffers
        self.frame_bytes = frame_bytes
        self.received_bytes = received_bytes
        self.held = buffers.allocate(received_bytes)
        self.is_waiting = False

    def ask(self) -> bool:
        larger = self.buffers.grow(self.held, self.received_bytes, self.frame_bytes, self)
        self.is_waiting = larger is None
        if larger is not None:
            self.held = larger
        return larger is not None

    def memory_available(self) -> None:
        self.ask()

    def finish(self) -> None:
        self.buffers.release(self.held, self)


def test_a_buffer_that_was_given_back_is_used_again() -> None:
    buffers = BufferPool(1 << 30)
    owner = Owner(buffers, 1_000_000, 200_000)
    assert owner.ask()
    first = owner.held
    owner.finish()
    again = Owner(buffers, 1_000_000, 10)
    assert again.ask()
    assert again.held is first, "memory at hand may be lent for what was only announced"


def test_growing_keeps_the_bytes_received() -> None:
    buffers = BufferPool(1 << 30)
    owner = Owner(buffers, 1_000_000, 5_000)
    owner.held[:5_000] = b"a" * 5_000
    assert owner.ask()
    assert owner.held[:5_000] == b"a" * 5_000
    assert 5_000 < len(owner.held) <= 16 * 5_000


def test_a_large_frame_is_copied_once_however_often_its_buffer_grows() -> None:
    """To copy tens of megabytes would hold the event loop."""
    buffers = BufferPool(1 << 30)
    owner = Owner(buffers, 100_000_000, SHARED_BYTES)
    assert owner.ask()
    first, sizes = owner.held, [len(owner.held)]
    while sizes[-1] < owner.frame_bytes:
        owner.held[sizes[-1] - 1] = len(sizes)
        owner.received_bytes = sizes[-1]
        assert owner.ask()
        assert owner.held.obj is first.obj
        assert buffers.allocated_bytes == len(owner.held)
        assert owner.held[sizes[-1] - 1] == len(sizes)
        sizes.append(len(owner.held))
    assert len(sizes) > 2
    owner.finish()
    assert buffers.allocated_bytes == 0


def test_memory_kept_for_reuse_is_bounded() -> None:
    buffers = BufferPool(1 << 30)
    owners = [Owner(buffers, 1_000_000, 1_000_000) for _ in range(100)]
    huge = Owner(buffers, 100_000_000, 50_000_000)
    for owner in (*owners, huge):
        owner.finish()
    assert buffers.allocated_bytes == 0
    assert buffers._free_bytes <= 8 << 20


def test_when_memory_is_short_one_owner_overdraws_and_the_others_wait_in_turn() -> None:
    buffers = BufferPool(4 << 20)
    owners = [Owner(buffers, 2_000_000, 1_000_000) for _ in range(4)]
    assert [owner.ask() for owner in owners] == [True, False, False, False]
    assert len(buffers.window) < SHARED_BYTES, "what a read leaves behind is kept small"
    for done, owner in enumerate(owners):
        assert not owner.is_waiting
        assert buffers.allocated_bytes <= (4 << 20) + (2 << 20)
        owner.finish()
        assert [o.is_waiting for o in owners[done + 1 : done + 2]] in ([False], [])
    assert buffers.allocated_bytes == 0
    assert len(buffers.window) == SHARED_BYTES


def test_an_owner_that_gives_up_waiting_is_not_called() -> None:
    buffers = BufferPool(1 << 20)
    owners = [Owner(buffers, 2_000_000, 500_000) for _ in range(3)]
    assert [owner.ask() for owner in owners] == [True, False, False]
    owners[1].finish()
    owners[0].finish()
    assert owners[1].is_waiting, "nobody told it"
    assert not owners[2].is_waiting

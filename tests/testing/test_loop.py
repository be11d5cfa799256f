"""Processes on one event loop: frozen, killed or cut off while the others run."""

import asyncio
import gc
import socket
from collections.abc import Callable, Coroutine
from contextvars import Context, copy_context
from typing import Any

import pytest

from suwi.env import SystemClock, SystemRandom
from suwi.sim.incarnation import Revoked
from suwi.sim.machine import Machine
from suwi.sim.network import SimTransport
from suwi.testing.disk import Drive, DriveDisk
from suwi.testing.loop import ClusterLoop

PATIENCE_S = 120


def run(main: Callable[[ClusterLoop], Coroutine[Any, Any, None]]) -> None:
    loop = ClusterLoop()
    try:
        loop.run_until_complete(asyncio.wait_for(main(loop), PATIENCE_S))
        loop.run_until_complete(loop.shutdown_default_executor())
    finally:
        loop.close()


def start(loop: ClusterLoop, name: str = "one") -> Machine[DriveDisk]:
    """A machine whose process is running."""
    machine = Machine(loop, name, Drive(""), SystemClock(), lambda _: SystemRandom())
    machine.start()
    return machine


class Echo(asyncio.Protocol):
    """Sends received data back."""

    def __init__(self) -> None:
        self.ended: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)

    def connection_lost(self, error: Exception | None) -> None:
        self.ended.set_result(error)


class Collector(Echo):
    """Collects received data."""

    def __init__(self) -> None:
        super().__init__()
        self.heard = b""
        self.changed = asyncio.Event()

    def data_received(self, data: bytes) -> None:
        self.heard += data
        self.changed.set()

    async def until(self, heard: bytes) -> None:
        while self.heard != heard:
            await self.changed.wait()
            self.changed.clear()


async def listen(loop: ClusterLoop, process: Machine[DriveDisk]) -> int:
    async def serve() -> int:
        server = await loop.create_server(Echo, "127.0.0.1", 0)
        return int(server.sockets[0].getsockname()[1])

    return int(await process.spawn(serve()))


async def connect(
    loop: ClusterLoop, port: int, process: Machine[DriveDisk] | None = None
) -> Collector:
    work = loop.create_connection(Collector, "127.0.0.1", port)
    _, protocol = await (work if process is None else process.spawn(work))
    assert isinstance(protocol, Collector)
    return protocol


def test_a_frozen_process_pauses_and_continues_where_it_was() -> None:
    async def main(loop: ClusterLoop) -> None:
        process, steps = start(loop), []

        async def count() -> None:
            for step in range(3):
                steps.append(step)
                await asyncio.sleep(0.001)

        task = process.spawn(count())
        await asyncio.sleep(0)
        process.freeze()
        before = list(steps)
        await asyncio.sleep(0.02)  # its timer has been due for long
        assert steps == before
        process.thaw()
        await task
        assert steps == [0, 1, 2]

    run(main)


def test_a_frozen_process_responds_after_it_is_resumed() -> None:
    async def main(loop: ClusterLoop) -> None:
        process = start(loop)
        port = await listen(loop, process)
        client = await connect(loop, port)
        client.transport.write(b"before ")
        await client.until(b"before ")
        process.freeze()
        client.transport.write(b"during ")
        late = await connect(loop, port)  # the kernel accepts it
        late.transport.write(b"knock")
        await asyncio.sleep(0.02)
        assert client.heard == b"before "
        process.thaw()
        await client.until(b"before during ")
        await late.until(b"knock")
        process.kill()

    run(main)


def test_a_just_accepted_connection_ends_with_the_process() -> None:
    async def main(loop: ClusterLoop) -> None:
        process = start(loop)
        port = await listen(loop, process)
        with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as client:
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            process.kill()  # accepted in this iteration, without a transport yet
            assert await loop.run_in_executor(None, client.recv, 1) == b""

    run(main)


def test_a_timer_that_is_cancelled_after_a_freeze_does_not_run() -> None:
    async def main(loop: ClusterLoop) -> None:
        process, ran, last = start(loop), [], asyncio.Event()

        def plan() -> None:
            late = loop.call_later(0.002, ran.append, "cancelled")
            loop.call_later(0.001, late.cancel)
            loop.call_later(0.003, last.set)

        process.call(plan)
        process.freeze()
        await asyncio.sleep(0.02)
        process.thaw()
        await last.wait()
        assert ran == []

    run(main)


def test_no_code_of_a_killed_process_runs() -> None:
    async def main(loop: ClusterLoop) -> None:
        process, ran = start(loop), []

        async def tidy_up() -> None:
            try:
                await asyncio.sleep(3600)
            finally:
                process.incarnation.check()  # as every call to disk and store does
                ran.append("finally")

        async def hangs_on() -> None:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                ran.append("cancelled")
            finally:
                await asyncio.sleep(0)
                ran.append("went on")

        tasks = [process.spawn(work) for work in (tidy_up(), hangs_on())]
        process.call(loop.call_later, 0.001, ran.append, "timer")
        process.call(loop.call_soon, ran.append, "soon")
        await asyncio.sleep(0)
        ran.clear()
        context = process.call(copy_context)
        process.kill()
        await asyncio.sleep(0.01)
        assert ran == []
        assert all(task.cancelled() for task in tasks)
        with pytest.raises(Revoked):
            loop.create_task(asyncio.sleep(0), context=context)

    run(main)


def test_killing_a_process_resets_its_connections_and_closes_its_port() -> None:
    async def main(loop: ClusterLoop) -> None:
        process, other = start(loop, "one"), start(loop, "two")
        port, other_port = await listen(loop, process), await listen(loop, other)
        client, bystander = await connect(loop, port), await connect(loop, other_port)
        outgoing = await connect(loop, other_port, process)
        client.transport.write(b"x")
        await client.until(b"x")
        process.kill()
        assert isinstance(await client.ended, ConnectionResetError)
        assert not outgoing.ended.done()  # a killed process is not notified
        with pytest.raises(ConnectionRefusedError):
            await connect(loop, port)
        bystander.transport.write(b"y")
        await bystander.until(b"y")
        other.kill()

    run(main)


def test_peers_of_a_cut_off_machine_notice_nothing_until_it_is_back() -> None:
    async def main(loop: ClusterLoop) -> None:
        process = start(loop)
        port = await listen(loop, process)
        client = await connect(loop, port)
        client.transport.write(b"x")
        await client.until(b"x")
        process.power_off()
        gc.collect()  # nothing refers to the transport of a process that is gone
        client.transport.write(b"y")
        await asyncio.sleep(0.02)
        assert client.heard == b"x"
        assert not client.ended.done()
        process.start()
        assert isinstance(await client.ended, ConnectionResetError)

    run(main)


def test_data_sent_over_a_cut_link_arrives_when_it_is_healed() -> None:
    async def main(loop: ClusterLoop) -> None:
        one, two = start(loop, "one"), start(loop, "two")
        port = await listen(loop, two)
        peer, client = await connect(loop, port, one), await connect(loop, port)
        loop.network.partition(["one"], ["two"])
        peer.transport.write(b"over the link")
        client.transport.write(b"from outside")
        waiting = asyncio.ensure_future(connect(loop, port, one))
        await client.until(b"from outside")
        assert peer.heard == b""
        assert not waiting.done()
        loop.network.heal()
        await peer.until(b"over the link")
        await waiting
        for process in (one, two):
            process.kill()

    run(main)


def test_a_close_is_not_delivered_over_a_cut_link() -> None:
    async def main(loop: ClusterLoop) -> None:
        one, two = start(loop, "one"), start(loop, "two")
        port = await listen(loop, two)
        peer = await connect(loop, port, one)
        loop.network.partition(["one"], ["two"])
        two.kill()
        await asyncio.sleep(0.02)
        assert not peer.ended.done()
        loop.network.heal()
        await peer.ended
        one.kill()

    run(main)


def test_data_sent_over_a_cut_link_by_a_killed_process_never_arrives() -> None:
    """As in a real network, where the sender would have to retransmit it."""

    async def main(loop: ClusterLoop) -> None:
        one, two = start(loop, "one"), start(loop, "two")
        port = await listen(loop, two)
        peer = await connect(loop, port, one)
        peer.transport.write(b"to be echoed")
        loop.network.partition(["one"], ["two"])
        two.kill()
        loop.network.heal()
        await peer.ended
        assert peer.heard == b""
        one.kill()

    run(main)


def test_a_close_before_a_kill_is_delivered() -> None:
    async def main(loop: ClusterLoop) -> None:
        one, two = start(loop, "one"), start(loop, "two")
        port = await listen(loop, two)
        peer = await connect(loop, port, one)
        peer.transport.write(b"x")
        await peer.until(b"x")
        loop.network.partition(["one"], ["two"])
        assert isinstance(peer.transport, SimTransport)
        two.call(peer.transport.peer.close)
        await asyncio.sleep(0.02)  # the close is in transit
        two.kill()
        loop.network.heal()
        await peer.ended
        one.kill()

    run(main)


def test_a_slow_link_keeps_the_order() -> None:
    async def main(loop: ClusterLoop) -> None:
        one, two = start(loop, "one"), start(loop, "two")
        port = await listen(loop, two)
        peer = await connect(loop, port, one)
        loop.network.slow("two", 20)
        began_s = loop.time()
        peer.transport.write(b"a")
        loop.network.slow("two", 0)
        peer.transport.writelines([b"b", b"c"])
        await peer.until(b"abc")
        assert loop.time() - began_s >= 0.02
        for process in (one, two):
            process.kill()

    run(main)


def test_closing_over_a_cut_link_does_not_wait() -> None:
    async def main(loop: ClusterLoop) -> None:
        one, two = start(loop, "one"), start(loop, "two")
        port = await listen(loop, two)
        peer = await connect(loop, port, one)
        loop.network.partition(["one"], ["two"])
        one.call(peer.transport.close)
        await peer.ended
        for process in (one, two):
            process.kill()

    run(main)


def test_work_that_a_process_requested_from_others_does_not_end_with_it() -> None:
    """As with the metadata store: its tasks belong to no process, and others wait for them."""

    async def main(loop: ClusterLoop) -> None:
        process, answered = start(loop), asyncio.Event()

        async def answer() -> None:
            await loop.run_in_executor(None, sum, ())
            answered.set()

        async def ask() -> None:
            await asyncio.shield(loop.create_task(answer(), context=Context()))

        process.spawn(ask())
        await asyncio.sleep(0)
        process.kill()
        await answered.wait()

    run(main)

"""Machines: processes start, are killed, and change nothing afterwards."""

import asyncio
import gc
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any

import pytest

from suwi.env import Env
from suwi.sim import Machine, Revoked, Simulation


def _simulate(scenario: Callable[[Simulation], Coroutine[Any, Any, Any]], seed: int = 0) -> Any:
    simulation = Simulation(seed)
    return simulation.run(scenario(simulation))


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(100):
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass
    finally:
        writer.close()


async def _serve(port: int = 9092) -> None:
    async with await asyncio.start_server(_echo, "", port) as server:
        await server.serve_forever()


async def _is_answered(host: str) -> bool:
    reader, writer = await asyncio.open_connection(host, 9092)
    try:
        async with asyncio.timeout(5):
            writer.write(b"ping")
            return await reader.readexactly(4) == b"ping"
    except TimeoutError:
        return False
    finally:
        writer.close()


def test_a_killed_process_stops_in_the_middle_and_its_finally_blocks_change_nothing() -> None:
    unwound: list[str] = []

    async def write_for_ever(env: Env) -> None:
        file = env.disk.open("/log", create=True)
        try:
            while True:
                file.pwrite(b"x", file.size())
                await asyncio.sleep(1)
        finally:
            unwound.append("finally")
            with pytest.raises(Revoked):
                file.truncate(0)
            with pytest.raises(Revoked):
                env.disk.remove("/log")
            await asyncio.sleep(1)
            unwound.append("never")

    async def scenario(simulation: Simulation) -> None:
        machine = simulation.machine("b1")
        task = machine.spawn(write_for_ever(machine.start()))
        await asyncio.sleep(2.5)
        machine.kill()
        assert unwound == ["finally"], "a kill takes effect at once"
        assert not machine.is_running
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.sleep(10)
        assert machine.start().disk.read_bytes("/log") == b"xxx"

    _simulate(scenario)
    assert unwound == ["finally"]


def test_a_kill_unwinds_generators_groups_and_time_limits() -> None:
    late: list[str] = []

    async def numbers() -> AsyncGenerator[int, None]:
        try:
            while True:
                await asyncio.sleep(1)
                yield 1
        finally:
            await asyncio.sleep(1)
            late.append("generator")

    async def consume() -> None:
        async for _ in numbers():
            pass

    async def work() -> None:
        async with asyncio.timeout(100), asyncio.TaskGroup() as group:
            group.create_task(consume())
            group.create_task(asyncio.wait_for(consume(), 50))
            await asyncio.gather(consume(), asyncio.shield(consume()))

    async def scenario(simulation: Simulation) -> None:
        machine = simulation.machine("b1")
        machine.start()
        task = machine.spawn(work())
        await asyncio.sleep(simulation.faults.uniform(0, 5))
        machine.kill()
        assert task.cancelled()
        await asyncio.sleep(1000)

    for seed in range(10):
        _simulate(scenario, seed)
    gc.collect()
    assert late == []


def test_no_timer_callback_or_job_of_a_dead_process_runs() -> None:
    late: list[str] = []

    async def plan() -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(1, late.append, "timer")
        for _ in range(20):
            loop.run_in_executor(None, lambda: None).add_done_callback(
                lambda _: loop.call_later(1, late.append, "job")
            )

    async def scenario(simulation: Simulation) -> None:
        machine = simulation.machine("b1")
        machine.start()
        await machine.spawn(plan())
        machine.kill()
        await asyncio.sleep(100)

    _simulate(scenario)
    assert late == []


def test_peers_of_a_killed_process_see_the_end_and_cannot_connect_again() -> None:
    async def scenario(simulation: Simulation) -> str:
        machine = simulation.machine("b1")
        machine.start()
        machine.spawn(_serve())
        await asyncio.sleep(1)
        reader, writer = await asyncio.open_connection("b1", 9092)
        machine.kill()
        try:
            ended = f"{await reader.read()!r}"
        except ConnectionResetError:
            ended = "reset"
        writer.close()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("b1", 9092)
        machine.start()
        machine.spawn(_serve())
        await asyncio.sleep(1)
        assert await _is_answered("b1")
        return ended

    assert {_simulate(scenario, seed) for seed in range(20)} == {"b''", "reset"}


def test_peers_of_a_machine_without_power_see_nothing_until_it_is_back() -> None:
    async def scenario(simulation: Simulation) -> None:
        machine = simulation.machine("b1")
        first = machine.start()
        boot_id = first.disk.boot_id()
        machine.spawn(_serve())
        await asyncio.sleep(1)
        reader, writer = await asyncio.open_connection("b1", 9092)
        machine.power_off()
        writer.write(b"hello?")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.read(1), 60)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.open_connection("b1", 9092), 60)
        second = machine.start()
        with pytest.raises(ConnectionResetError):
            await reader.read(1)
        assert second.disk.boot_id() != boot_id
        writer.close()

    for seed in range(10):
        _simulate(scenario, seed)


def test_a_power_loss_drops_what_was_not_synced() -> None:
    async def scenario(simulation: Simulation) -> None:
        machine = simulation.machine("b1")
        env = machine.start()
        env.disk.open("/a", create=True).pwrite(b"lost", 0)
        machine.power_off(tear=False)
        assert machine.disk.list_dir("/") == []
        assert machine.start().disk.list_dir("/") == []

    _simulate(scenario)


def test_a_process_that_dies_in_a_disk_call_is_dead_altogether() -> None:
    async def write(env: Env) -> None:
        for number in range(100):
            env.disk.write_atomically(f"/{number}", b"x")
            await asyncio.sleep(1)

    async def scenario(simulation: Simulation) -> None:
        machine = simulation.machine("b1")
        env = machine.start()
        machine.spawn(_serve())
        task = machine.spawn(write(env))
        await asyncio.sleep(1.5)
        machine.disk.faults.crash_after(8)
        with pytest.raises(Revoked):
            await task
        assert not machine.is_running
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("b1", 9092)
        assert machine.disk.list_dir("/") == ["0", "1", "2", "3.tmp"]

    _simulate(scenario)


def test_a_frozen_process_answers_when_it_is_thawed() -> None:
    async def scenario(simulation: Simulation) -> None:
        machine = simulation.machine("b1")
        machine.start()
        machine.spawn(_serve())
        await asyncio.sleep(1)
        machine.freeze()
        assert not await _is_answered("b1"), "the kernel accepts, the process does not answer"
        machine.thaw()
        assert await _is_answered("b1")

    for seed in range(10):
        _simulate(scenario, seed)


def test_timers_of_a_frozen_process_fire_late() -> None:
    async def sleeper() -> float:
        await asyncio.sleep(1)
        return asyncio.get_running_loop().time()

    async def scenario(simulation: Simulation) -> None:
        machine = simulation.machine("b1")
        machine.start()
        task = machine.spawn(sleeper())
        await asyncio.sleep(0.5)
        machine.freeze()
        await asyncio.sleep(30)
        machine.thaw()
        assert await task == 30.5

    _simulate(scenario)


def test_a_disk_call_that_stalls_holds_up_its_process_and_nobody_else() -> None:
    async def tick(times: list[float]) -> None:
        while True:
            times.append(asyncio.get_running_loop().time())
            await asyncio.sleep(1)

    async def scenario(simulation: Simulation) -> None:
        slow, other = simulation.machine("b1"), simulation.machine("b2")
        env, _ = slow.start(), other.start()
        slow_times: list[float] = []
        other_times: list[float] = []
        slow.spawn(tick(slow_times))
        other.spawn(tick(other_times))
        await asyncio.sleep(1.5)
        slow.disk.faults.stall(10, "sync")
        file = env.disk.open("/log", create=True)
        slow.call(file.sync)
        await asyncio.sleep(12)
        assert slow_times == [0, 1, 11.5, 12.5, 13.5][: len(slow_times)]
        assert len(other_times) == 14

    _simulate(scenario)


def test_a_job_that_stalls_holds_up_nothing_but_its_result() -> None:
    async def sync(env: Env) -> tuple[float, int]:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(1)

        ticking = asyncio.create_task(tick())
        file = env.disk.open("/log", create=True)
        await asyncio.get_running_loop().run_in_executor(None, file.sync)
        ticking.cancel()
        return asyncio.get_running_loop().time(), ticks

    async def scenario(simulation: Simulation) -> None:
        machine = simulation.machine("b1")
        env = machine.start()
        machine.disk.faults.stall(10, "sync")
        time_s, ticks = await machine.spawn(sync(env))
        assert 10 <= time_s < 11
        assert ticks >= 10

    for seed in range(10):
        _simulate(scenario, seed)


def test_each_machine_has_its_own_clock_disk_and_chance() -> None:
    async def scenario(simulation: Simulation) -> None:
        a = simulation.machine("a").start()
        b = simulation.machine("b", skew_ms=-5000, capacity_bytes=100).start()
        await asyncio.sleep(2.5)
        assert a.clock.now_ms() == simulation.start_ms + 2500
        assert b.clock.now_ms() == simulation.start_ms - 2500
        a.disk.make_dirs("/only-here")
        assert not b.disk.exists("/only-here")
        assert b.disk.free_bytes("/") == 100
        assert a.random.uuid() != b.random.uuid()

    _simulate(scenario)


def test_incarnations_draw_different_ids_and_the_same_seed_the_same() -> None:
    def ids(machine: Machine) -> list[str]:
        first = str(machine.start().random.uuid())
        machine.kill()
        return [first, str(machine.start().random.uuid())]

    first, again = ids(Simulation(1).machine("b1")), ids(Simulation(1).machine("b1"))
    assert first == again
    assert len(set(first)) == 2

"""The simulated loop is an asyncio loop in virtual time, with an order that a seed decides."""

import asyncio
import gc
from collections.abc import AsyncGenerator
from contextvars import Context

import pytest

from suwi import sim
from suwi.sim import Deadlock, Livelock, SimLoop, Simulation, Unhandled
from suwi.sim.incarnation import current


def test_time_jumps_to_the_next_timer() -> None:
    async def main() -> float:
        await asyncio.sleep(3600)
        async with asyncio.timeout(10):
            await asyncio.sleep(5)
        return asyncio.get_running_loop().time()

    assert sim.run(main()) == 3605


def test_a_timeout_ends_what_takes_too_long() -> None:
    async def main() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), 7)
        assert asyncio.get_running_loop().time() == 7

    sim.run(main())


def test_timers_fire_in_order_of_their_time_and_cancelled_ones_do_not() -> None:
    async def main() -> list[int]:
        loop = asyncio.get_running_loop()
        fired: list[int] = []
        handles = [loop.call_later(delay, fired.append, delay) for delay in (5, 1, 4, 2, 3)]
        handles[2].cancel()
        assert handles[2].cancelled()
        await asyncio.sleep(10)
        return fired

    assert sim.run(main()) == [1, 2, 3, 5]


def test_a_million_cancelled_timers_do_not_stay() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        for _ in range(10_000):
            loop.call_later(1000, print).cancel()
        assert len(loop._timers) < 1000  # type: ignore[attr-defined]

    sim.run(main())


async def _order_of_tasks() -> list[int]:
    order: list[int] = []

    async def step(number: int) -> None:
        await asyncio.sleep(0)
        order.append(number)

    await asyncio.gather(*(step(number) for number in range(6)))
    return order


def test_the_seed_decides_which_task_runs_next() -> None:
    orders = {tuple(sim.run(_order_of_tasks(), seed=seed)) for seed in range(50)}
    assert len(orders) > 20
    assert sim.run(_order_of_tasks(), seed=3) == sim.run(_order_of_tasks(), seed=3)


def test_in_fifo_mode_tasks_run_as_in_asyncio() -> None:
    assert sim.run(_order_of_tasks(), schedule="fifo") == asyncio.run(_order_of_tasks())


def test_plain_callbacks_keep_the_order_that_asyncio_promises() -> None:
    async def main() -> list[int]:
        seen: list[int] = []
        for number in range(20):
            asyncio.get_running_loop().call_soon(seen.append, number)
        await asyncio.sleep(1)
        return seen

    for seed in range(20):
        assert sim.run(main(), seed=seed) == list(range(20))


def test_a_deadlock_names_who_waits_and_where() -> None:
    async def wait_for_nothing() -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        waiting = asyncio.create_task(wait_for_nothing(), name="hopeless")
        await waiting

    with pytest.raises(Deadlock, match=r"hopeless at test_loop.py:\d+ in wait_for_nothing"):
        sim.run(main())


def test_time_that_stands_still_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("suwi.sim.loop._STEPS_AT_ONE_TIME_MAX", 1000)

    async def main() -> None:
        while True:  # noqa: ASYNC110 - the mistake that is to be found
            await asyncio.sleep(0)

    with pytest.raises(Livelock, match="main"):
        sim.run(main())


def test_an_exception_in_a_callback_ends_the_run_at_once() -> None:
    def fail() -> None:
        raise ValueError("in a callback")

    async def main() -> None:
        asyncio.get_running_loop().call_later(1, fail)
        await asyncio.sleep(1000)

    with pytest.raises(Unhandled, match="in a callback") as caught:
        sim.run(main(), seed=7)
    assert isinstance(caught.value.__cause__, ValueError)
    assert caught.value.__notes__ == ["seed 7, 1.000000 s of virtual time"]


def test_a_task_that_fails_unnoticed_fails_the_run() -> None:
    async def fail() -> None:
        raise ValueError("in a task")

    async def main() -> None:
        asyncio.create_task(fail())  # noqa: RUF006 - nobody looks at it, which is the point
        await asyncio.sleep(1)
        gc.collect()

    with pytest.raises(Unhandled, match="in a task"):
        sim.run(main())


def test_a_task_whose_exception_is_handled_does_not() -> None:
    async def fail() -> None:
        raise ValueError("expected")

    async def main() -> None:
        failing = asyncio.create_task(fail())
        await asyncio.sleep(1)
        with pytest.raises(ValueError, match="expected"):
            await failing

    sim.run(main())


def test_an_exception_of_the_main_coroutine_comes_out_as_it_is() -> None:
    async def main() -> None:
        await asyncio.sleep(1)
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        sim.run(main())


def test_a_checker_runs_after_every_step_and_ends_the_run_when_it_raises() -> None:
    simulation = Simulation()
    state = {"value": 0}

    def check() -> None:
        assert state["value"] < 3, "invariant broken"

    async def main() -> None:
        while True:
            state["value"] += 1
            await asyncio.sleep(1)

    simulation.add_checker(check)
    with pytest.raises(AssertionError, match="invariant broken"):
        simulation.run(main())
    assert simulation.loop.time() == 2


def test_jobs_run_at_once_or_later_and_give_their_result_or_error() -> None:
    async def main() -> tuple[list[int], bool]:
        loop = asyncio.get_running_loop()
        done: list[int] = []
        jobs = [loop.run_in_executor(None, done.append, number) for number in range(10)]
        some_are_done = bool(done)
        await asyncio.gather(*jobs)
        with pytest.raises(ZeroDivisionError):
            await asyncio.to_thread(lambda: 1 // 0)
        return done, some_are_done

    orders = {(tuple(done), early) for done, early in (sim.run(main(), seed=s) for s in range(20))}
    assert len(orders) > 5
    assert all(sorted(done) == list(range(10)) for done, _ in orders)
    assert sim.run(main(), schedule="fifo") == (list(range(10)), True)


def test_a_cancelled_job_leaves_nothing_behind() -> None:
    async def main() -> None:
        for _ in range(20):
            job = asyncio.get_running_loop().run_in_executor(None, int, "x")
            job.cancel()
            with pytest.raises(asyncio.CancelledError):
                await job
        await asyncio.sleep(1)

    sim.run(main())


def test_what_still_runs_at_the_end_is_cancelled_in_order() -> None:
    ended: list[int] = []

    async def linger(number: int) -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            await asyncio.sleep(number)
            ended.append(number)

    async def main() -> None:
        tasks = [asyncio.create_task(linger(number)) for number in range(3)]
        await asyncio.sleep(1)
        assert not any(task.done() for task in tasks)

    sim.run(main())
    assert ended == [0, 1, 2]


def test_asyncio_runner_works_with_the_loop() -> None:
    async def main() -> str:
        queue: asyncio.Queue[int] = asyncio.Queue(1)
        lock, condition = asyncio.Lock(), asyncio.Condition()
        async with asyncio.TaskGroup() as group:
            group.create_task(queue.put(1))
            group.create_task(queue.put(2))
            taken = [await queue.get(), await queue.get()]
        async with lock, condition:
            condition.notify_all()
        async with asyncio.Semaphore(2):
            return f"{sorted(taken)}"

    with asyncio.Runner(loop_factory=SimLoop) as runner:
        assert runner.run(main()) == "[1, 2]"


def test_asynchronous_generators_are_closed_at_the_end() -> None:
    closed: list[str] = []

    async def numbers() -> AsyncGenerator[int, None]:
        try:
            yield 1
            yield 2
        finally:
            await asyncio.sleep(1)
            closed.append("closed")

    kept = []

    async def main() -> None:
        generator = numbers()
        kept.append(generator)
        assert await anext(generator) == 1

    sim.run(main())
    assert closed == ["closed"]


def test_a_closed_loop_takes_no_callbacks() -> None:
    simulation = Simulation()
    simulation.run(asyncio.sleep(0))
    with pytest.raises(RuntimeError, match="closed"):
        simulation.loop.call_soon(print)


def test_a_task_in_an_empty_context_belongs_to_nobody() -> None:
    simulation = Simulation(1)
    machine = simulation.machine("b1")

    async def main() -> list[object]:
        machine.start()
        owners: list[object] = []

        async def look() -> None:
            owners.append(current.get())

        def spawn() -> asyncio.Task[None]:
            loop = asyncio.get_running_loop()
            return loop.create_task(look(), context=Context())

        await machine.call(spawn)
        return owners

    assert simulation.run(main()) == [None]

"""An asyncio event loop in virtual time whose scheduling is drawn from a seed.

Time advances to the next timer when nothing is ready. `create_server` and `create_connection` use
a simulated network, `run_in_executor` runs the job itself, at once or later. After every
callback the step hooks run; an unhandled exception ends the run.
Invariant: no callback of a revoked incarnation runs, and none of a frozen one until it is thawed.
"""

import asyncio
import heapq
import sys
import weakref
from asyncio import Future, Task
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator, Sequence
from contextvars import Context, copy_context
from hashlib import blake2b
from typing import Any, TypeVar, TypeVarTuple, Unpack, cast

from suwi.sim.incarnation import Incarnation, current
from suwi.sim.network import SimNetwork, SimServer
from suwi.sim.random import SimRandom
from suwi.sim.ready import Ready, Schedule, SimHandle
from suwi.sim.tasks import TaskList, is_revocation

_BATCH = 512


class Trace:
    """A fingerprint of a run: same seed, same hash, whatever `PYTHONHASHSEED`. Labels name tasks
    and functions, never addresses. The last events are kept for error messages."""

    def __init__(self, sink: Callable[[str], None] | None = None) -> None:
        self._hash = blake2b(digest_size=16)
        self._batch: list[str] = []
        self._sink = sink
        self._time_s, self._time = 0.0, "0.0"
        self.recent: deque[str] = deque(maxlen=50)
        self.events = 0

    def add(self, time_s: float, owner: str, kind: str, label: str) -> None:
        if time_s != self._time_s:
            self._time_s, self._time = time_s, repr(time_s)
        line = f"{self._time} {owner} {kind} {label}\n"
        self.events += 1
        self.recent.append(line)
        self._batch.append(line)
        if len(self._batch) >= _BATCH:
            self._flush()
        if self._sink is not None:
            self._sink(line)

    def digest(self) -> str:
        self._flush()
        return self._hash.hexdigest()

    def _flush(self) -> None:
        self._hash.update("".join(self._batch).encode())
        self._batch.clear()


_T = TypeVar("_T")
_Ts = TypeVarTuple("_Ts")
_STEPS_AT_ONE_TIME_MAX = 1_000_000
_CANCELLED_TIMERS_MIN = 100


class SimError(Exception):
    """The run cannot continue."""


class Deadlock(SimError):
    """Nothing is ready, no timer is set, and some task still waits."""


class Livelock(SimError):
    """Callbacks run without end, and virtual time does not advance."""


class Unhandled(SimError):
    """An unhandled exception of a callback or a task."""


class SimLoop(asyncio.AbstractEventLoop):
    def __init__(
        self,
        random: SimRandom | None = None,
        *,
        schedule: Schedule = "random",
        trace: Callable[[str], None] | None = None,
    ) -> None:
        random = random or SimRandom(0)
        self._jobs_random = random.stream("jobs") if schedule == "random" else None
        self._ready = Ready(random.stream("schedule") if schedule == "random" else None)
        self.network = SimNetwork(self, random.stream("network"))
        self.trace = Trace(trace)
        self.job_delay_s_max = 0.05
        """How long a job for a thread is delayed, at most."""
        self.tasks = TaskList()
        self.wrap_task: Callable[[Any, str, Incarnation | None], Any] | None = None
        """Called with every task's coroutine, name and process; returns what runs in its place."""
        self.ran: Incarnation | None = None
        """The process whose callback ran last; None: the test or the network. For step hooks."""
        self._now = 0.0
        self._timers: list[tuple[float, int, SimHandle]] = []
        self._cancelled_timers = 0
        self._serial = 0
        self._steps_at_this_time = 0
        self._step_hooks: list[Callable[[], None]] = []
        self._parked: dict[Incarnation, list[SimHandle]] = {}
        self._job_stall_s: float | None = None
        self._failure: Unhandled | None = None
        self._has_killed = False
        self._running = False
        self._stopping = False
        self._closed = False
        self._exception_handler: Any = None
        self._async_generators: dict[int, weakref.ref[AsyncGenerator[Any, Any]]] = {}

    # Time and callbacks.

    def time(self) -> float:
        return self._now

    def call_soon(
        self,
        callback: Callable[[Unpack[_Ts]], object],
        *args: *_Ts,
        context: Context | None = None,
    ) -> SimHandle:
        self._check_closed()
        handle = SimHandle(self._now, callback, args, context)
        self._ready.add(handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_later(
        self,
        delay: float,
        callback: Callable[[Unpack[_Ts]], object],
        *args: *_Ts,
        context: Context | None = None,
    ) -> SimHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[_Ts]], object],
        *args: *_Ts,
        context: Context | None = None,
    ) -> SimHandle:
        self._check_closed()
        handle = SimHandle(when, callback, args, context, self._timer_was_cancelled)
        self._push_timer(when, handle)
        return handle

    def _push_timer(self, when: float, handle: SimHandle) -> None:
        self._serial += 1
        heapq.heappush(self._timers, (when, self._serial, handle))

    def _timer_was_cancelled(self) -> None:
        self._cancelled_timers += 1
        if self._cancelled_timers > max(_CANCELLED_TIMERS_MIN, len(self._timers) // 2):
            self._timers = [timer for timer in self._timers if not timer[2].is_cancelled]
            heapq.heapify(self._timers)
            self._cancelled_timers = 0

    # Running.

    def run_forever(self) -> None:
        self._check_closed()
        if self._running or asyncio._get_running_loop() is not None:
            raise RuntimeError("an event loop is running already")
        hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(self._async_generator_begins, self._async_generator_is_dropped)
        asyncio._set_running_loop(self)
        self._running = True
        try:
            while not self._stopping:
                self._step()
        finally:
            self._stopping = False
            self._running = False
            asyncio._set_running_loop(None)
            sys.set_asyncgen_hooks(*hooks)

    def run_until_complete(self, future: Generator[Any, None, _T] | Awaitable[_T]) -> _T:
        self._check_closed()
        is_new = not asyncio.isfuture(future)
        main: Future[_T] = asyncio.ensure_future(cast(Awaitable[_T], future), loop=self)
        main.add_done_callback(self._stop_when_done)
        try:
            self.run_forever()
        except BaseException:
            if is_new and main.done() and not main.cancelled():
                main.exception()  # The other error is the one to report.
            raise
        finally:
            main.remove_done_callback(self._stop_when_done)
        if not main.done():
            raise RuntimeError("event loop stopped before the future was done")
        return main.result()

    def _stop_when_done(self, _future: Future[Any]) -> None:
        self.stop()

    def stop(self) -> None:
        self._stopping = True

    def is_running(self) -> bool:
        return self._running

    def is_closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        if self._running:
            raise RuntimeError("cannot close a running event loop")
        if not self._closed:
            self.network.close()
            self.tasks.abandon_all()
            self._closed = True
            self._timers.clear()
            self._parked.clear()

    def _check_closed(self) -> None:
        if self._closed:
            raise RuntimeError("event loop is closed")

    def add_step_hook(self, hook: Callable[[], None]) -> None:
        """Call this after every callback; an exception that it raises ends the run."""
        self._step_hooks.append(hook)

    def _step(self) -> None:
        ready = self._ready
        if not ready:
            self._jump()
        while self._timers and self._timers[0][0] <= self._now:
            ready.add(heapq.heappop(self._timers)[2])
        handle = ready.pop()
        owner = handle.owner
        if handle.is_cancelled or (owner is not None and not self._may_run(owner, handle)):
            return
        self.ran = owner
        self.trace.add(self._now, owner.name if owner is not None else "-", *handle.describe())
        try:
            handle.context.run(handle.callback, *handle.args)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:
            message = f"exception in {' '.join(handle.describe())}"
            self.call_exception_handler({"message": message, "exception": error, "handle": handle})
        for hook in self._step_hooks:
            hook()
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        self._steps_at_this_time += 1
        if self._steps_at_this_time > _STEPS_AT_ONE_TIME_MAX:
            recent = "".join(self.trace.recent)
            raise Livelock(f"time does not advance at {self._now} s:\n{recent}")

    def _jump(self) -> None:
        """Nothing is ready: advance to the next timer."""
        timers = self._timers
        while timers and timers[0][2].is_cancelled:
            heapq.heappop(timers)
        if not timers:
            lines = [f"nothing can run any more after {self._now} s; these tasks still wait:"]
            lines += [f"  {line}" for line in self.tasks.describe_waiting()]
            lines += [f"  {each.name} is frozen" for each in self._parked]
            raise Deadlock("\n".join(lines)) from self.tasks.first_failure()
        self._now = max(self._now, timers[0][0])
        self._steps_at_this_time = 0

    def _may_run(self, owner: Incarnation, handle: SimHandle) -> bool:
        if owner.revoked:
            return False
        if owner.frozen:
            self._parked.setdefault(owner, []).append(handle)
            return False
        if owner.stalled_until > self._now:
            self._push_timer(owner.stalled_until, handle)
            return False
        return True

    # Processes.

    def kill(self, incarnation: Incarnation) -> None:
        """Unwind the tasks of a revoked incarnation; none of its callbacks runs any more."""
        assert incarnation.revoked
        self._has_killed = True
        self._parked.pop(incarnation, None)
        self.tasks.abandon(incarnation)

    def freeze(self, incarnation: Incarnation) -> None:
        """As SIGSTOP: time passes, the kernel accepts bytes for it, none of its callbacks runs."""
        incarnation.frozen = True

    def thaw(self, incarnation: Incarnation) -> None:
        incarnation.frozen = False
        for handle in self._parked.pop(incarnation, ()):
            self._ready.add(handle)

    def stall(self, incarnation: Incarnation, duration_s: float) -> None:
        """A blocking call: it blocks its thread, or the whole process if made on the loop."""
        if self._job_stall_s is not None:
            self._job_stall_s += duration_s
        else:
            incarnation.stalled_until = max(self._now, incarnation.stalled_until) + duration_s

    # Futures, tasks, jobs.

    def create_future(self) -> Future[Any]:
        return Future(loop=self)

    def create_task(
        self,
        coro: Generator[Any, None, _T] | Coroutine[Any, Any, _T],
        *,
        name: str | None = None,
        context: Context | None = None,
        **options: Any,
    ) -> Task[_T]:
        self._check_closed()
        context = copy_context() if context is None else context
        if name is None:
            name = self.tasks.next_name(coro)
        if self.wrap_task is not None:
            coro = self.wrap_task(coro, name, context.get(current))
        return self.tasks.make(coro, self, name, context, options)

    def run_in_executor(
        self, executor: Any, func: Callable[[Unpack[_Ts]], _T], *args: *_Ts
    ) -> Future[_T]:
        self._check_closed()
        future: Future[_T] = Future(loop=self)
        random = self._jobs_random
        if random is None or random.chance(0.5):
            self._run_job(future, func, args)
        else:
            delay_s = random.uniform(0.0, self.job_delay_s_max)
            self.call_later(delay_s, self._run_job, future, func, args)
        return future

    def _run_job(self, future: Future[Any], func: Callable[..., Any], args: Any) -> None:
        result: Any = None
        error: BaseException | None = None
        outer, self._job_stall_s = self._job_stall_s, 0.0
        try:
            result = func(*args)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as raised:  # It is raised where the job is awaited.
            error = raised
        finally:
            stall_s, self._job_stall_s = self._job_stall_s, outer
        self.call_later(stall_s or 0.0, _end_job, future, result, error)

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """There are no threads. `asyncio.Runner` calls it."""

    # Network.

    async def create_server(  # type: ignore[override]
        self,
        protocol_factory: Any,
        host: str | Sequence[str] | None = None,
        port: int | None = None,
        *,
        ssl: Any = None,
        sock: Any = None,
        start_serving: bool = True,
        **_options: Any,
    ) -> SimServer:
        if ssl is not None or sock is not None:
            raise NotImplementedError("the simulation has neither TLS nor sockets")
        hosts = [host or ""] if host is None or isinstance(host, str) else list(host)
        server = SimServer(self, self.network.listen(protocol_factory, hosts, port or 0))
        if start_serving:
            await server.start_serving()
        return server

    async def create_connection(
        self,
        protocol_factory: Any,
        host: str | None = None,
        port: int | None = None,
        *,
        ssl: Any = None,
        sock: Any = None,
        **_options: Any,
    ) -> Any:
        if ssl is not None or sock is not None:
            raise NotImplementedError("the simulation has neither TLS nor sockets")
        if host is None or port is None:
            raise ValueError("host and port are needed")
        return await self.network.connect(protocol_factory, host, port)

    # Errors.

    def set_exception_handler(self, handler: Any) -> None:
        self._exception_handler = handler

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        handler = self._exception_handler or type(self).default_exception_handler
        handler(self, context)

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        message = str(context.get("message"))
        dropped = error is None or "never retrieved" in message
        if self._closed or is_revocation(error) or (dropped and self._has_killed):
            return  # Left behind by a killed process.
        if isinstance(error, asyncio.CancelledError):
            return  # From asyncio's streams, when a server's handler was cancelled.
        if self._failure is None:
            self._failure = Unhandled(f"{message}: {error!r}")
            self._failure.__cause__ = error

    def check_tasks(self) -> None:
        """Raise if a task ended with an exception that was never retrieved."""
        failure = self.tasks.first_failure()
        if failure is not None:
            raise Unhandled(f"a task failed and nobody noticed: {failure!r}") from failure

    def get_debug(self) -> bool:
        return False

    # Asynchronous generators.

    def _async_generator_begins(self, generator: AsyncGenerator[Any, Any]) -> None:
        self._serial += 1
        number, known = self._serial, self._async_generators
        known[number] = weakref.ref(generator, lambda _: known.pop(number, None))

    def _async_generator_is_dropped(self, generator: AsyncGenerator[Any, Any]) -> None:
        if not self._closed:
            # The coroutine is created in the callback: a killed process never runs one.
            self.call_soon(self._close_async_generator, generator)

    def _close_async_generator(self, generator: AsyncGenerator[Any, Any]) -> None:
        self.create_task(generator.aclose())

    async def shutdown_asyncgens(self) -> None:
        for reference in list(self._async_generators.values()):
            generator = reference()
            if generator is not None:
                await generator.aclose()


def _end_job(future: Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)

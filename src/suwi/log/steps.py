"""Work that takes long, as a generator that a driver runs on the event loop a slice at a time.

What it yields is a job for a thread (a sync, a rename), whose result is sent back in, or `TURN`:
it has had the loop for as long as one may, others come first. What it does itself, it does on the
loop, and whatever may have changed at a yield has to be looked at again.
Slices are counted in batches or files, never in time, so that a simulation repeats them.
"""

from collections.abc import Callable, Generator
from typing import Any, Final, TypeAlias, TypeVar

T = TypeVar("T")
Job: TypeAlias = Callable[[], Any]
Steps = Generator[Job, Any, T]


def _nothing() -> None:
    pass


TURN: Final[Job] = _nothing
"""Nothing to do in a thread: go on when others have had their turn."""


def run_steps(steps: Steps[T], wrap: Callable[[Job], Job] = lambda job: job) -> T:
    """Drive them here and now, without a loop. `wrap` is told of each job before it runs."""
    try:
        job = next(steps)
        while True:
            try:
                result = wrap(job)()
            except BaseException as error:
                job = steps.throw(error)
            else:
                job = steps.send(result)
    except StopIteration as done:
        value: T = done.value
        return value


def after_each(steps: Steps[T], follow_up: Callable[[], None]) -> Steps[T]:
    """The same steps; `follow_up` is called after each, before anybody else has a turn."""
    try:
        job = next(steps)
        while True:
            follow_up()
            try:
                result = yield job
            except Exception as error:
                job = steps.throw(error)
            else:
                job = steps.send(result)
    except StopIteration as done:
        follow_up()
        value: T = done.value
        return value
    finally:
        steps.close()

"""Long work as a generator that a driver runs on the event loop in slices.

The generator yields a job for a thread (a sync, a rename), whose result is sent back, or `TURN`: it
has used its slice and yields the event loop. The code between yields runs on the event loop; after
a yield it must check again what may have changed.
Slices are counted in batches or files, never in time, so that a simulation is repeatable.
"""

from collections.abc import Callable, Generator
from typing import Any, Final, TypeAlias, TypeVar

T = TypeVar("T")
Job: TypeAlias = Callable[[], Any]
Steps = Generator[Job, Any, T]


def _nothing() -> None:
    pass


TURN: Final[Job] = _nothing
"""No job: yields the event loop."""


def run_steps(steps: Steps[T], wrap: Callable[[Job], Job] = lambda job: job) -> T:
    """Run the steps in this call, without an event loop. `wrap` can wrap each job."""
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
    """The same steps; `follow_up` is called after each one, before the event loop is yielded."""
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

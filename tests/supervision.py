"""Tasks for parts of a broker that are tested alone."""

from suwi.env.tasks import TaskFailure, Tasks


def tasks_that_must_not_fail() -> Tasks:
    def fatal(failure: TaskFailure) -> None:
        raise AssertionError(str(failure)) from failure.error

    return Tasks(fatal)

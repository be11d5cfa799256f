"""The rule against background tasks without an owner."""

import pytest

from tools.check_tasks import bare_tasks


@pytest.mark.parametrize(
    "line",
    [
        "asyncio.create_task(work())",
        "loop.create_task(work())",
        "asyncio.get_running_loop().create_task(work(), name='x')",
        "task = asyncio.ensure_future(work())",
        "wait([asyncio.create_task(each()) for each in many])",
    ],
)
def test_a_bare_task_is_found(line: str) -> None:
    assert bare_tasks(f"import asyncio\n{line}\n") == [2]


def test_one_with_an_owner_or_under_supervision_is_not() -> None:
    assert bare_tasks("asyncio.create_task(work())  # owner: whoever awaits the call\n") == []
    assert bare_tasks("tasks.start(work, name='x', on_failure=RESTART)\n") == []

"""Lateness that the machine causes is not attributed to the loop."""

import pytest

from bench.watch.heartbeat import own_lateness_s


def test_a_late_beat_is_the_loops_own_where_the_idle_process_was_in_time() -> None:
    assert own_lateness_s([(10.0, 0.3)], []) == [0.3]
    assert own_lateness_s([(10.0, 0.3)], [(9.0, 0.5), (11.0, 0.2)]) == [0.3]


def test_what_the_idle_process_was_late_at_the_same_moment_is_taken_off() -> None:
    assert own_lateness_s([(10.0, 0.3)], [(10.1, 0.1)]) == pytest.approx([0.2])
    assert own_lateness_s([(10.0, 0.3)], [(9.9, 0.2), (10.2, 5.0)]) == pytest.approx([0.1])


def test_a_machine_that_stood_still_leaves_nothing_to_the_loop() -> None:
    assert own_lateness_s([(10.0, 0.3)], [(9.0, 4.0)]) == [0.0]

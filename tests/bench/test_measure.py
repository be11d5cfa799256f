"""Turns of several systems, and when they stop."""

from bench.measure import take_turns


def test_a_job_that_takes_too_long_has_fewer_repetitions_but_one() -> None:
    ran: list[str] = []

    def run() -> dict[str, float]:
        ran.append("run")
        return {"value": 1.0}

    (figure,) = take_turns("job", {"system": run}, 5, warm_ups=1, s_max=0)
    assert len(ran) == 2
    assert figure.values["value"] == [1.0]


def test_every_other_round_is_in_reverse_order() -> None:
    ran: list[str] = []

    def run_of(name: str) -> dict[str, float]:
        ran.append(name)
        return {}

    take_turns("job", {name: lambda name=name: run_of(name) for name in "ab"}, 2, warm_ups=0)
    assert ran == ["a", "b", "b", "a"]

"""Settings of the clients of scenarios: Kafka's names, with the defaults of its Java client."""

from collections.abc import Mapping
from difflib import get_close_matches

from suwi.sim.cluster import SimCluster
from suwi.sim.machine import Machine


def machine_of(cluster: SimCluster, name: str) -> Machine:
    """The machine of a client, which may have run another process before."""
    return cluster.simulation.machines.get(name) or cluster.simulation.machine(name)


_CHOICES = {
    "acks": ("0", "1", "all"),
    "auto.offset.reset": ("earliest", "latest", "none"),
    "group.protocol": ("classic", "consumer"),
    "isolation.level": ("read_uncommitted", "read_committed"),
}
_FLAGS = ("true", "false")


class Settings:
    def __init__(self, defaults: Mapping[str, str], given: Mapping[str, str]) -> None:
        """Raises `ValueError` for a setting without a default, or a value of the wrong kind."""
        for key, value in given.items():
            if key not in defaults:
                near = get_close_matches(key, defaults, 1)
                advice = f"did you mean {near[0]}?" if near else f"there are {', '.join(defaults)}"
                raise ValueError(f"there is no setting {key}; {advice}")
            choices = _FLAGS if defaults[key] in _FLAGS else _CHOICES.get(key, ())
            if choices and value not in choices:
                raise ValueError(f"{key} is {' or '.join(choices)}, not {value}")
            if defaults[key].isdigit() and not choices and not value.isdigit():
                raise ValueError(f"{key} is a number, not {value}")
        self._given = given
        self._values = {**defaults, **given}

    def __getitem__(self, key: str) -> str:
        return self._values[key]

    def is_given(self, key: str, value: str) -> bool:
        return self._given.get(key) == value

    def is_on(self, key: str) -> bool:
        return self._values[key] == "true"

    def seconds(self, key: str) -> float:
        return int(self._values[key]) / 1000

"""Rules that are not obeyed, connections that stay muted and watches that never end are found."""

from itertools import repeat
from typing import Any
from unittest.mock import patch

import pytest

from simulation.seeded_run import Options, run_seed
from suwi.net.connection import Connection
from suwi.replica.partition_watch import PartitionWatches
from suwi.security import authorizer
from suwi.security.authorizer import Authorizer
from suwi.sim.checkers import Broken

RULES, QUOTAS, WATCHED = (
    Options(kinds=["kill"], trouble_s=8.0, mechanisms=[name])
    for name in ("access rules change", "throttled client", "watched partition")
)


def remembers_decisions(self: Authorizer, *asked: Any) -> bool:
    """Also when the rules have changed."""
    if asked[-1] is None:
        return True
    remembered: dict[Any, bool] = self.__dict__.setdefault("remembered", {})
    return remembered.setdefault(asked, self.decide(*asked).is_allowed)


def stays_muted(_connection: Connection) -> None:
    """As if the timer had been lost."""


def forgets_to_go_on(connection: Connection) -> None:
    connection._unmuting = None


def ignores_throttles(connection: Connection) -> bool:
    return connection._exclusive or connection._awaits_turn or connection._is_full()


def watches_for_ever(_watches: PartitionWatches) -> None:
    """As if the timer had been lost."""


def keeps_the_watch(self: PartitionWatches, tp: Any) -> None:
    self._watched.pop(tp, None)


FAULTS = [
    (RULES, Authorizer, "may", remembers_decisions, "is remembered as|is sent records"),
    # Rules by whose number nobody sees that they have changed: connections remember their grants.
    (RULES, authorizer, "_numbers", repeat(0), "a rule denies it|is sent records"),
    (QUOTAS, Connection, "_unmute", stays_muted, "stays muted"),
    (QUOTAS, Connection, "_unmute", forgets_to_go_on, "stays muted"),
    (QUOTAS, Connection, "_is_blocked", ignores_throttles, "begins while it is muted"),
    (WATCHED, PartitionWatches, "_end_expired", watches_for_ever, "still watches"),
    (WATCHED, PartitionWatches, "_end", keeps_the_watch, "never stops"),
]


@pytest.mark.parametrize(("options", "owner", "name", "fault", "told"), FAULTS)
def test_a_fault_is_found(options: Options, owner: Any, name: str, fault: Any, told: str) -> None:
    with patch.object(owner, name, fault), pytest.raises((Broken, AssertionError), match=told):
        run_seed(1, options)


@pytest.mark.parametrize("options", [RULES, QUOTAS, WATCHED])
def test_without_a_fault_nothing_is_found(options: Options) -> None:
    run_seed(1, options)

"""DescribeBroker v0, Suwi's own and never advertised: the broker's id and broker epoch.

The response is JSON: `{"node": 1, "stopping": false, "directories": ["eJw..."], "epoch": 17,
"process": "0b..."}`, with the ids of the data directories and of the process. The epoch is -1 while
the broker is not registered; only brokers receive it. Clients receive instead: `version`, `now_ms`
(the broker's clock), `store` (where the metadata is), `store_state` (of the session with it),
`elections` (the last ones that it decided as the controller: time, cause and number of partitions
of each), `problems` (what is wrong with it now, at most `LISTED_MAX`), `problems_count`, `access`
(its settings of access rules) and `acls_sequence` (of the metadata, when the rules changed). Who
may not describe the cluster learns only which broker it is: a broker that starts asks so.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from suwi import __version__
from suwi.controller.registration import BrokerIncarnation
from suwi.controller.replication_control import RecentElection
from suwi.env import Clock
from suwi.env.problems import LISTED_MAX, Problems
from suwi.handlers.json_body import json_reply
from suwi.net.answers import Answer
from suwi.net.dispatch import Request
from suwi.security.acls import CLUSTER_NAME, Operation, ResourceType


@dataclass(eq=False)
class DescribeBroker:
    _incarnation: Callable[[], BrokerIncarnation]
    _clock: Clock
    _store: str
    _store_state: Callable[[], str]
    _problems: Problems
    _elections: Collection[RecentElection] = ()
    _access: Mapping[str, str] = field(default_factory=dict)
    _acls_sequence: Callable[[], int] = lambda: 0

    def __call__(self, request: Request) -> Answer:
        fields = self._incarnation()._asdict()
        is_visible = request.may(Operation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME)
        if not request.client.is_peer:
            del fields["epoch"]
        if not request.client.is_peer and is_visible:
            problems = list(self._problems)
            fields |= {
                "version": __version__,
                "now_ms": self._clock.now_ms(),
                "store": self._store,
                "store_state": self._store_state(),
                "elections": [election._asdict() for election in self._elections],
                "problems": [problem.as_fields() for problem in problems[:LISTED_MAX]],
                "problems_count": len(problems),
                "access": dict(self._access),
                "acls_sequence": self._acls_sequence(),
            }
        return json_reply(fields)

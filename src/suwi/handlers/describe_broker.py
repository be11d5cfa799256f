"""DescribeBroker v0, Suwi's own and never advertised: the broker's id and broker epoch.

The response is JSON: `{"node": 1, "stopping": false, "directories": ["eJw..."], "epoch": 17,
"process": "0b..."}`, with the ids of the data directories and of the process. The epoch is -1 while
the broker is not registered; only brokers receive it. Clients receive instead: `version`, `now_ms`
(the broker's clock), `store` (where the metadata is), `store_state` (of the session with it),
`elections` (the last ones that it decided as the controller: time, cause and number of partitions
of each), `problems` (what is wrong with it now, at most `LISTED_MAX`) and `problems_count`.
"""

import json
from collections.abc import Callable, Collection

from suwi import __version__
from suwi.controller.registration import BrokerIncarnation
from suwi.controller.replication_control import RecentElection
from suwi.env import Clock
from suwi.env.problems import LISTED_MAX, Problems
from suwi.net.answers import Answer, Reply
from suwi.net.dispatch import Request


class DescribeBroker:
    def __init__(
        self,
        incarnation: Callable[[], BrokerIncarnation],
        clock: Clock,
        store: str,
        store_state: Callable[[], str],
        problems: Problems,
        elections: Collection[RecentElection] = (),
    ) -> None:
        self._incarnation = incarnation
        self._clock = clock
        self._store = store
        self._store_state = store_state
        self._problems = problems
        self._elections = elections

    def __call__(self, request: Request) -> Answer:
        fields = self._incarnation()._asdict()
        if not request.client.is_peer:
            problems = list(self._problems)
            del fields["epoch"]
            fields |= {
                "version": __version__,
                "now_ms": self._clock.now_ms(),
                "store": self._store,
                "store_state": self._store_state(),
                "elections": [election._asdict() for election in self._elections],
                "problems": [problem.as_fields() for problem in problems[:LISTED_MAX]],
                "problems_count": len(problems),
            }
        return Reply([json.dumps(fields).encode()])

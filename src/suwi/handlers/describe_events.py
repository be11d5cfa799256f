"""DescribeEvents v0, Suwi's own and never advertised: the cluster's recorded events.

The response is JSON: `{"events": [{"kind": …, "at_ms": …, "facts": {…}}]}`, oldest first.
"""

import json
from dataclasses import asdict

from suwi.metadata.cluster_events import events
from suwi.net.answers import Answer, Reply
from suwi.net.dispatch import Request
from suwi.replica.replica_manager import ReplicaManager


class DescribeEvents:
    def __init__(self, replicas: ReplicaManager) -> None:
        self._replicas = replicas

    def __call__(self, request: Request) -> Answer:
        kept = [asdict(event) for event in events(self._replicas.image)]
        return Reply([json.dumps({"events": kept}).encode()])

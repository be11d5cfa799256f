"""DescribeEvents v0, Suwi's own and never advertised: the cluster's recorded events.

The response is JSON: `{"events": [{"kind": …, "at_ms": …, "facts": {…}}]}`, oldest first.
"""

from dataclasses import asdict

from suwi.handlers.json_body import json_reply
from suwi.metadata.cluster_events import events
from suwi.net.answers import Answer
from suwi.net.dispatch import Request
from suwi.replica.replica_manager import ReplicaManager


def describe_events(replicas: ReplicaManager, request: Request) -> Answer:
    return json_reply({"events": [asdict(event) for event in events(replicas.image)]})

"""No answer has records that its client may not read by the rules that its broker has by then.

A waiting fetch loses its rights at once, and what the authorizer remembers is what its rules say.
Looked at inside of brokers, whoever the client is.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from suwi.handlers.fetch_job import Job, ReadPass
from suwi.security.acls import Operation, ResourceType
from suwi.security.authorizer import Authorizer
from suwi.sim.checkers.facts import Broken
from suwi.sim.cluster import SimCluster


class RightsWatch:
    def __init__(self, cluster: SimCluster) -> None:
        self._wrong: str | None = None
        cluster.simulation.add_checker(self._after_step)

    @contextmanager
    def tapped(self) -> Iterator[None]:
        """While it is entered, decisions are compared with the rules."""
        reply, may = Job.reply, Authorizer.may

        def checked_reply(job: Job, read_pass: ReadPass) -> Any:
            self._look_at(job, read_pass)
            return reply(job, read_pass)

        def checked_may(authorizer: Authorizer, *asked: Any) -> bool:
            is_allowed = may(authorizer, *asked)
            if asked[-1] is not None and authorizer.decide(*asked).is_allowed is not is_allowed:
                self._wrong = f"{asked} is remembered as {is_allowed}, the rules say otherwise"
            return is_allowed

        with (
            patch.object(Job, "reply", checked_reply),
            patch.object(Authorizer, "may", checked_may),
        ):
            yield

    def _look_at(self, job: Job, read_pass: ReadPass) -> None:
        request = job.request
        if request is None or request.authorizer is None:
            return
        client = request.client
        for found in read_pass.found:
            topic = found.key[0]
            name = topic if isinstance(topic, str) else job.source.name_of(topic)
            if found.slice is None or name is None:
                continue
            decided = request.authorizer.decide(
                client.principal, client.host, Operation.READ, ResourceType.TOPIC, name
            )
            if not decided.is_allowed:
                self._wrong = f"{client.host} is sent records of {name}: {decided.rule}"

    def _after_step(self) -> None:
        if self._wrong is not None:
            raise Broken(self._wrong)

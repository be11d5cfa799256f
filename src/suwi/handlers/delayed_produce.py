"""A produce whose response waits: acks=all for the commit, acks=1 with flush.messages=1 for the
sync of the leader."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from suwi.model.errors import BrokerError
from suwi.model.ids import Offset
from suwi.net.answers import NoReply, Outcome, Promise, Reply
from suwi.replica.partition import Partition


class DelayedProduce:
    """A reply that is sent when the batches of a request are committed or synced; has no task."""

    __slots__ = ("_answer", "_errors", "_pending", "_promise")

    def __init__(self, answer: Callable[[Mapping[int, Exception]], Reply | NoReply]) -> None:
        """`answer` builds the reply from the errors, by batch number."""
        self._answer = answer
        self._errors: dict[int, Exception] = {}
        self._pending: set[int] = set()
        self._promise = Promise(self._pending.clear)

    def promise_of(
        self, batches: Sequence[tuple[Partition, Offset]], timeout_s: float, *, committed: bool
    ) -> Promise:
        self._pending.update(range(len(batches)))
        for number, (partition, end_offset) in enumerate(batches):
            wait = partition.when_committed if committed else partition.replica_log.when_synced
            wait(end_offset, partial(self._on_done, number), timeout_s)
        return self._promise

    def _on_done(self, number: int, error: BrokerError | None) -> None:
        if number not in self._pending:
            return  # the client has disconnected
        self._pending.remove(number)
        if error is not None:
            self._errors[number] = error
        if not self._pending:
            self._complete()

    def _complete(self) -> None:
        outcome: Outcome
        try:
            outcome = self._answer(self._errors)
        except Exception as error:
            outcome = error
        self._promise.keep(outcome)

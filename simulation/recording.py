"""Records a run as events of the lab (`--record FILE`).

Invariant: the trace hash of a run is the same with and without it.
"""

from simulation.history import ACKS_ALL, History, Write
from suwi.lab.recorder import Recorder
from suwi.sim.cluster import SimCluster


class RunRecorder(Recorder):
    """Also records the faults that the simulation injects, and what its clients send."""

    def __init__(self, cluster: SimCluster, history: History) -> None:
        super().__init__(cluster)
        cluster.on_say.append(self._on_say)
        history.on_send = self._on_send

    def _on_say(self, what: str) -> None:
        mark, _, text = what.partition(" ")
        if mark == "*":
            self.fault(text)

    def _on_send(self, write: Write) -> None:
        acks = "all" if write.acks == ACKS_ALL else str(write.acks)
        value = write.value.decode(errors="replace")
        number = self.sent(write.writer, write.partition, [value], acks, None)

        def ended(write: Write) -> None:
            self.send_ended(
                write.writer, number, write.offset, None if write.is_acked else "refused"
            )

        write.on_outcome = ended

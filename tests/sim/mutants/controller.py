"""What the controller, and what brokers report to it, can get wrong: hazards 10, 11 and 12."""

from typing import Any

from suwi.controller import broker_lifecycle, replication_control
from suwi.controller.metadata_writer import MetadataWriter
from suwi.controller.proposed_isr import ANY_EPOCH, validate
from suwi.lab.mutants import Mutant

# -- hazard 10 ------------------------------------------------------------------------------------


def _judge_without_lives(state: Any, sender: Any, proposal: Any, *rest: Any) -> Any:
    members = tuple((node, ANY_EPOCH) for node, _ in proposal.members)
    return validate(state, sender, proposal._replace(members=members), *rest)


# -- hazard 11 ------------------------------------------------------------------------------------

_writer_init = MetadataWriter.__init__


def _writes_in_no_name(self: MetadataWriter, *arguments: Any, **options: Any) -> None:
    _writer_init(self, *arguments, **options)
    self._controller_epoch = None  # type: ignore[assignment]


# -- hazard 12 ------------------------------------------------------------------------------------

_encode = broker_lifecycle.encode_registration


def _registers_without_suspicion(own: Any) -> bytes:
    return _encode(own._replace(was_unclean_shutdown=False))


MUTANTS = (
    Mutant(
        "isr-without-broker-epochs",
        10,
        "the controller adds a follower to the ISR that has restarted since it caught up",
        ((replication_control, "validate", _judge_without_lives),),
    ),
    Mutant(
        "deposed-controller-writes",
        11,
        "writes do not carry the controller's epoch",
        ((MetadataWriter, "__init__", _writes_in_no_name),),
    ),
    Mutant(
        "power-loss-is-a-crash",
        12,
        "a broker that returns from a power loss is treated as if it had only crashed",
        ((broker_lifecycle, "encode_registration", _registers_without_suspicion),),
    ),
)

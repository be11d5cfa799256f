"""The picture of a partition, in a terminal of any width."""

from typing import Any

import pytest
from rich.cells import cell_len

from suwi.lab.events import Election, Fault, InSync, ReplicaChanged, Replicas, Truncation
from suwi.lab.picture import picture, pictures

PARTITION = "orders-0"


def replicas(records: int = 3) -> Replicas:
    found = Replicas()
    common: dict[str, Any] = {"at_s": 1.0, "partition": PARTITION}
    found.add(Election(broker=1, epoch=1, reason="the leader is gone", **common))
    found.add(InSync(broker=1, members=(1, 2), is_confirmed=True, **common))
    batches = tuple((n, n, 0 if n < 2 else 1, f"v{n}") for n in range(records))
    for broker, kept, watermark in ((1, records, 2), (2, 2, 1), (3, 0, 0)):
        found.add(
            ReplicaChanged(
                broker=broker,
                offset=kept,
                high_watermark=watermark,
                appended=batches[:kept],
                **common,
            )
        )
    found.add(Fault(at_s=1.0, broker=3, what="the process ends"))
    return found


def test_replicas_are_rows_and_marks_show_high_watermark_and_end() -> None:
    assert picture(replicas(), PARTITION, 80) == [
        "orders: leader b1, epoch 1, in sync b1 b2",
        "  offset      0     1     2",
        "  b1 leader  │v0 e0│v1 e0║v2 e1│",
        "  b2 in sync │v0 e0║v1 e0│",
        "  b3 down    ║",
    ]


def test_records_of_an_epoch_have_a_colour() -> None:
    lines = picture(replicas(), PARTITION, 80, colour=True)
    assert "\x1b[36mv0 e0\x1b[0m" in lines[2]
    assert "\x1b[35mv2 e1\x1b[0m" not in lines[2]
    assert "\x1b[33mv2 e1\x1b[0m" in lines[2]


@pytest.mark.parametrize("language", ["en", "ko"])
@pytest.mark.parametrize("width", [40, 80, 140])
def test_no_line_is_wider_than_the_terminal_and_the_newest_records_are_shown(
    width: int, language: str
) -> None:
    lines = picture(replicas(100), PARTITION, width, language=language)
    assert all(cell_len(line) <= width for line in lines[1:])
    assert "v99 e1" in lines[2]


def test_a_truncation_removes_cells() -> None:
    found = replicas()
    found.add(Truncation(at_s=2.0, broker=1, partition=PARTITION, offset=1, removed=((1, 2, 0),)))
    assert picture(found, PARTITION, 80)[2] == "  b1 leader  │v0 e0║"


def test_several_partitions_are_beside_each_other_if_there_is_room_and_have_records() -> None:
    found = replicas()
    for name, end in (("empty-0", 0), ("bills-0", 1)):
        common: dict[str, Any] = {"at_s": 2.0, "broker": 1, "partition": name}
        found.add(Election(epoch=0, reason="the partition is created", **common))
        found.add(ReplicaChanged(offset=end, appended=((0, 0, 0, "x"),) * end, **common))
    beside = pictures(found, 120, colour=True)
    assert "orders: leader b1" in beside[0]
    assert "bills: leader b1" in beside[0]
    assert "empty" not in beside[0]
    assert len(pictures(found, 60)) == 5 + 3
    assert pictures(found, 120, about="bills-0 on b1: lost")[0].startswith("bills")

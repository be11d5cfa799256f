"""`suwi transactions`: listed, described, found hanging and ended."""

from pathlib import Path

from tests.broker_process import BrokerProcess, unique_name
from tests.cli.support import Suwi
from tests.cli.transactional_producer import COMMIT, OPEN, transact, write_late
from tests.testing.clients import until


def test_transactional_ids_are_listed_and_described(
    broker: BrokerProcess, suwi: Suwi, topic: str
) -> None:
    done, busy = unique_name("done"), unique_name("busy")
    transact(broker.address, done, topic, COMMIT)
    transact(broker.address, busy, topic, OPEN)
    listed = {each["transactional_id"]: each for each in suwi.json("transactions", "list")}
    assert listed[busy]["state"] == "Ongoing"
    assert listed[done]["state"] in ("CompleteCommit", "PrepareCommit")
    ongoing = suwi.ok("transactions", "list", "--state", "Ongoing", "--pattern", busy)
    heading, line = ongoing.splitlines()
    assert heading.split() == ["TransactionalId", "State", "ProducerId", "Coordinator"]
    assert line.split()[:2] == [busy, "Ongoing"]
    assert suwi.json("transactions", "list", "--running-longer-than", "3600") == []

    (described,) = suwi.json("transactions", "describe", busy)
    assert described["state"] == "Ongoing"
    assert described["partitions"] == [{"topic": topic, "partition": 0}]
    assert described["open_ms"] >= 0
    shown = suwi.ok("transactions", "describe", busy)
    assert f"Partitions:      {topic}-0" in shown
    # EndTxn is answered before the markers are written.
    until(lambda: suwi.json("transactions", "describe", done)[0]["partitions"] == [])


def test_an_unknown_transactional_id_is_refused_with_a_similar_one(
    broker: BrokerProcess, suwi: Suwi, topic: str
) -> None:
    name = unique_name("copier")
    transact(broker.address, name, topic, COMMIT)
    assert f"did you mean '{name}'" in suwi.refusal("transactions", "describe", name + "x")


def test_a_coordinated_transaction_does_not_hang(
    broker: BrokerProcess, suwi: Suwi, topic: str
) -> None:
    transact(broker.address, unique_name("id"), topic, OPEN)
    arguments = ("transactions", "find-hanging", "--topic", topic)
    assert suwi.json(*arguments, "--max-transaction-timeout", "0") == []
    assert suwi.ok(*arguments) == "no transaction hangs\n"
    assert "--topic" in suwi.misuse("transactions", "find-hanging", "--partition", 0)


def test_a_transaction_that_a_coordinator_knows_is_not_ended(
    broker: BrokerProcess, suwi: Suwi, topic: str
) -> None:
    transact(broker.address, unique_name("id"), topic, COMMIT, OPEN)
    abort = ("transactions", "abort", topic, 0, "--start-offset")
    assert "no open transaction" in suwi.refusal(*abort, 0)
    assert "does not hang" in suwi.refusal(*abort, 2)
    (found,) = suwi.json("explain", topic, 0, 2)
    assert found["transaction"] == "open"


def test_a_hanging_transaction_is_found_and_ended_by_its_first_offset(tmp_path: Path) -> None:
    setting, topic = "transaction.partition.verification.enable=false", "orders"
    with BrokerProcess(tmp_path / "data", setting) as broker:
        suwi = Suwi(broker.address)
        suwi.ok("topics", "create", topic)
        transact(broker.address, "copier", topic, COMMIT)
        write_late(suwi, topic, "copier", 2)
        find = ("transactions", "find-hanging", "--max-transaction-timeout", "0")
        (found,) = suwi.json(*find)
        assert (found["topic"], found["partition"], found["start_offset"]) == (topic, 0, 2)
        assert (found["transactional_id"], found["state"]) == (None, None)
        assert "no coordinator knows it" in suwi.ok(*find)
        abort = ("transactions", "abort", topic, 0, "--start-offset", 2)
        assert suwi.ok(*abort) == f"aborted the transaction of {topic}-0 that begins at offset 2\n"
        assert "no open transaction" in suwi.refusal(*abort)
        assert suwi.ok(*find) == "no transaction hangs\n"
        (found,) = suwi.json("explain", topic, 0, 2)
        assert found["transaction"] == "aborted"
        broker.stop()

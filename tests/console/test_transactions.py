"""The pages of transactions and producers say what the command line says."""

from pathlib import Path

from tests.broker_process import BrokerProcess, unique_name
from tests.cli.support import Suwi
from tests.cli.transactional_producer import COMMIT, OPEN, transact, write_late
from tests.console.support import Browser, ConsoleThread


def test_open_transactions_come_first_with_since_when(
    browser: Browser, broker: BrokerProcess, suwi: Suwi, topic: str
) -> None:
    stem = unique_name("copier")
    transact(broker.address, f"{stem}-a", topic, COMMIT)
    transact(broker.address, f"{stem}-b", topic, OPEN)
    page = browser.page("transactions", search=stem)
    assert [row["transactional_id"] for row in page["rows"]] == [f"{stem}-b", f"{stem}-a"]
    (told,) = suwi.json("transactions", "describe", f"{stem}-b")
    opened, ended = page["rows"]
    for key in ("state", "started_ms", "producer_id", "coordinator", "timeout_ms"):
        assert opened[key] == told[key]
    assert opened["partitions"] == len(told["partitions"])
    assert (ended["is_open"], ended["started_ms"]) == (False, None)
    only = browser.page("transactions", search=stem, state="open")
    assert [row["transactional_id"] for row in only["rows"]] == [f"{stem}-b"]

    one = browser.page("transaction", transaction=f"{stem}-b")
    (partition,) = one["partitions"]
    assert (partition["topic"], partition["partition"]) == (topic, 0)
    (fields,) = suwi.json("explain", topic, 0, partition["start_offset"])
    assert (fields["transaction"], fields["transactional_id"]) == ("open", f"{stem}-b")


def test_a_transactional_id_that_does_not_exist_is_missing(browser: Browser) -> None:
    assert browser.problem("transaction", transaction="nothing") == (404, "missing")


def test_the_producers_of_a_partition_are_those_of_the_command_line(
    browser: Browser, broker: BrokerProcess, suwi: Suwi, topic: str
) -> None:
    name = unique_name("copier")
    assert browser.page("producers", topic=topic, partition=0)["rows"] == []
    assert "has no producers" in suwi.ok("transactions", "describe-producers", topic, 0)
    transact(broker.address, name, topic, COMMIT, OPEN)
    (row,) = browser.page("producers", topic=topic, partition=0)["rows"]
    assert [row] == suwi.json("transactions", "describe-producers", topic, 0)
    assert (row["transactional_id"], row["start_offset"]) == (name, 2)
    assert name in suwi.ok("transactions", "describe-producers", topic, 0)
    assert browser.problem("producers", topic="nothing") == (404, "missing")


def test_a_hanging_transaction_is_found(tmp_path: Path, static: Path) -> None:
    setting, topic = "transaction.partition.verification.enable=false", "orders"
    with (
        BrokerProcess(tmp_path / "data", setting) as broker,
        ConsoleThread(static, local=broker.address) as console,
    ):
        suwi, browser = Suwi(broker.address), Browser(console).log_in(console)
        suwi.ok("topics", "create", topic)
        transact(broker.address, "copier", topic, COMMIT)
        assert browser.page("hanging", minutes=0)["found"] == []
        write_late(suwi, topic, "copier", 2)
        page = browser.page("hanging", minutes=0)
        find = ("transactions", "find-hanging", "--max-transaction-timeout", "0")
        assert page["found"] == suwi.json(*find)
        assert page["command"] == f"suwi {' '.join(find)} --broker {broker.address}"

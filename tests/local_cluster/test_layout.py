from pathlib import Path

import pytest

from suwi.local_cluster.layout import (
    BROKERS_MAX,
    PORTS,
    ClusterState,
    Layout,
    broker_settings,
    read_state,
    write_state,
)
from suwi.local_cluster.process import ProcessId


def ports_of(layout: Layout) -> list[int]:
    found = [port for server in layout.servers().values() for port in server[:3]]
    for broker in layout.broker_ids:
        found += [layout.client_port(broker), layout.peer_port(broker)]
        found.append(layout.peer_link_port(broker))
        found += [layout.ensemble_link_port(broker, at) for at in range(len(layout.ensemble()))]
    return found


def test_no_two_ports_of_the_largest_cluster_are_equal() -> None:
    ports = ports_of(Layout(BROKERS_MAX, 5, "", 19_092, has_links=True))
    assert len(ports) == len(set(ports))
    assert min(ports) >= 19_092
    assert max(ports) < 19_092 + PORTS


def test_brokers_reach_each_other_and_zookeeper_through_links() -> None:
    layout = Layout(3, 1, "", 19_092, has_links=True)
    settings = broker_settings(layout, 2, "data")
    peers = f"PEERS://127.0.0.1:{layout.peer_link_port(2)}"
    assert settings["advertised.listeners"].endswith(peers)
    assert settings["zookeeper.connect"] == f"127.0.0.1:{layout.ensemble_link_port(2, 0)}"


def test_without_links_everything_is_reached_directly() -> None:
    layout = Layout(3, 0, "a:2181,b:2182/suwi", 19_092, has_links=False)
    settings = broker_settings(layout, 1, "data")
    assert settings["advertised.listeners"] == settings["listeners"]
    assert settings["zookeeper.connect"] == "a:2181,b:2182/suwi"


def test_on_hosts_of_their_own_processes_have_addresses_of_their_own() -> None:
    layout = Layout(3, 3, "", 19_092, has_links=False, network="10.0.7")
    settings = broker_settings(layout, 2, "data")
    assert settings["listeners"] == "PLAINTEXT://10.0.7.12:19093,PEERS://10.0.7.12:19193"
    servers = "10.0.7.101:19392,10.0.7.102:19393,10.0.7.103:19394"
    assert settings["zookeeper.connect"] == servers


def test_a_given_ensemble_keeps_its_chroot_behind_links() -> None:
    layout = Layout(1, 0, "a:2181,b/suwi", 19_092, has_links=True)
    assert layout.ensemble() == [("a", 2181), ("b", 2181)]
    assert layout.zookeeper_connect(1) == "127.0.0.1:19492,127.0.0.1:19493/suwi"


def test_a_server_without_a_port_has_zookeepers_also_without_links() -> None:
    layout = Layout(1, 0, "a,b:2182/suwi/", 19_092, has_links=False)
    assert layout.zookeeper_connect(1) == "a:2181,b:2182/suwi"


def test_the_state_is_read_as_it_was_written(tmp_path: Path) -> None:
    state = ClusterState(
        Layout(3, 1, "", 19_092, has_links=True, settings={"num.partitions": "6"}),
        {"broker-1": ProcessId(7, "boot 123")},
        [("1", "zookeeper")],
        ["2"],
    )
    write_state(str(tmp_path), state)
    assert read_state(str(tmp_path)) == state


def test_a_broker_is_cut_off_if_it_reaches_neither_brokers_nor_zookeeper() -> None:
    state = ClusterState(Layout(3, 1, "", 19_092, has_links=True))
    state.cuts = [("2", "1"), ("2", "3"), ("1", "zookeeper")]
    assert list(state.cut_off()) == []
    state.cuts.append(("2", "zookeeper"))
    assert list(state.cut_off()) == [2]


@pytest.mark.parametrize("content", ["{}", "[]", "not JSON", '{"version": 9}'])
def test_a_file_that_is_no_description_is_refused_by_name(tmp_path: Path, content: str) -> None:
    (tmp_path / "cluster.json").write_text(content)
    with pytest.raises(ValueError, match=r"cluster\.json is not the description of a cluster"):
        read_state(str(tmp_path))

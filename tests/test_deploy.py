"""The files of `deploy/`: they parse, and what they name exists: commands, options, keys, metrics.

What needs Ansible, Prometheus or schemas is checked where these are installed.
"""

import json
import re
import shlex
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from suwi.cli.main import app
from suwi.cli.properties import from_environment, from_file, parse_settings
from suwi.env import local_env
from suwi.model.broker_config import BrokerConfig
from suwi.model.listener_config import parse_listeners
from tests.broker_process import BrokerProcess

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
YAML = sorted(DEPLOY.rglob("*.yaml"))
UNITS = sorted(DEPLOY.rglob("*.service.j2"))
_METRIC = re.compile(r"\b(?:suwi|process)_[a-z_]+\b")
_COMMAND = re.compile(
    r"\bsuwi (?:serve|status|doctor|topics|groups|configs|consume|produce|cluster)\b[^\n'\"`]*"
)
_SUFFIXES = re.compile(r"_(?:bucket|count|sum)$")


def documents(path: Path) -> list[Any]:
    return list(yaml.safe_load_all(path.read_text()))


def values(node: Any) -> Iterator[Any]:
    """All scalars in a document."""
    if isinstance(node, Mapping):
        for value in node.values():
            yield from values(value)
    elif isinstance(node, list):
        for value in node:
            yield from values(value)
    else:
        yield node


@pytest.mark.parametrize("path", YAML, ids=lambda path: str(path.relative_to(DEPLOY)))
def test_every_file_is_yaml_without_empty_documents(path: Path) -> None:
    assert all(document is not None for document in documents(path))


# -- commands --------------------------------------------------------------------------------------


def commands() -> Iterator[tuple[str, list[str]]]:
    """Every call of `suwi` in the files: as a line of text, or as a list of words."""
    for path in [p for p in sorted(DEPLOY.rglob("*")) if p.is_file() and p.suffix != ".json"]:
        name = str(path.relative_to(DEPLOY))
        text = re.sub(r"\{\{.*?\}\}", "1", path.read_text())
        for found in _COMMAND.findall(re.sub(r"\s*\n\s+(?=--)", " ", text)):
            yield name, shlex.split(re.split("[;|]", found)[0], comments=True)[1:]
        if path.suffix == ".yaml":
            for node in nodes(documents(path)):
                for key in ("command", "args", "test"):
                    words = node.get(key)
                    if isinstance(words, list) and ("suwi" in words or "--insecure" in words):
                        prefix = ["suwi", "serve"] if "suwi" not in words else []
                        words = prefix + words
                        yield name, [str(w) for w in words[words.index("suwi") + 1 :]]


def nodes(node: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(node, Mapping):
        yield node
        for value in node.values():
            yield from nodes(value)
    elif isinstance(node, list):
        for value in node:
            yield from nodes(value)


def options_of(words: list[str]) -> tuple[set[str], int]:
    """The options of a command, and how many words name it."""
    command: Any = get_command(app)
    depth = 0
    while hasattr(command, "commands"):
        assert words[depth] in command.commands, words
        command = command.commands[words[depth]]
        depth += 1
    options = {o for p in command.params for o in (*p.opts, *p.secondary_opts)}
    return options, depth


def test_every_command_and_option_exists() -> None:
    found = list(commands())
    assert {name for name, _ in found} >= {
        "compose.yaml",
        "kubernetes/suwi.yaml",
        "README.md",
        "kubernetes/consumer.yaml",
        "kubernetes/consumer-autoscaled.yaml",
        "ansible/roles/suwi/tasks/wait.yaml",
        "ansible/roles/suwi/templates/suwi.service.j2",
    }
    for name, words in found:
        known, depth = options_of(words)
        used = {word.split("=")[0] for word in words[depth:] if word.startswith("--")}
        assert used <= known, (name, words)


# -- settings --------------------------------------------------------------------------------------


def check(config: BrokerConfig) -> None:
    assert config.zookeeper_connect
    assert config.default_replication_factor == 3
    assert config.topic.min_insync_replicas == 2
    assert all(spec.advertised_host for spec in parse_listeners(config))


def test_the_brokers_of_compose_have_valid_settings_and_ids_of_their_own() -> None:
    (compose,) = documents(DEPLOY / "compose.yaml")
    brokers = {name: s for name, s in compose["services"].items() if name.startswith("broker-")}
    ids = set()
    for name, service in brokers.items():
        parsed = parse_settings(from_environment(service["environment"]))
        assert len(from_environment(service["environment"])) == len(service["environment"])
        assert parsed.ignored == ()
        check(parsed.config)
        ids.add(parsed.config.node_id)
        assert service["healthcheck"]["test"][-1] == str(parsed.config.node_id)
        assert f"{name}:19092" in service["healthcheck"]["test"]
    assert ids == {1, 2, 3}
    ensemble = {name for name in compose["services"] if name.startswith("zookeeper-")}
    named = parsed.config.zookeeper_connect.partition("/")[0].split(",")
    assert {address.partition(":")[0] for address in named} == ensemble


def stateful_set(name: str) -> Any:
    found = [d for d in documents(DEPLOY / "kubernetes" / name) if d["kind"] == "StatefulSet"]
    return found[0]


def test_the_brokers_of_kubernetes_have_valid_settings_and_ids_from_their_pods() -> None:
    (container,) = stateful_set("suwi.yaml")["spec"]["template"]["spec"]["containers"]
    given = {
        e["name"]: e.get("value", "0").replace("$(POD_NAME)", "suwi-0") for e in container["env"]
    }
    parsed = parse_settings(from_environment(given))
    assert parsed.ignored == ()
    check(parsed.config)
    (node_id,) = [e for e in container["env"] if e["name"] == "SUWI_NODE_ID"]
    assert "pod-index" in node_id["valueFrom"]["fieldRef"]["fieldPath"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert parse_listeners(parsed.config)[0].port == ports["kafka"]
    assert str(ports["metrics"]) in container["args"]


@pytest.mark.parametrize("name", ["suwi.yaml", "zookeeper.yaml"])
def test_services_and_budgets_select_the_pods(name: str) -> None:
    by_kind = {d["kind"]: d for d in documents(DEPLOY / "kubernetes" / name)}
    labels = by_kind["StatefulSet"]["spec"]["template"]["metadata"]["labels"]
    assert by_kind["Service"]["spec"]["selector"] == labels
    assert by_kind["Service"]["spec"]["clusterIP"] == "None"
    assert by_kind["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == labels
    assert by_kind["StatefulSet"]["spec"]["selector"]["matchLabels"] == labels
    assert by_kind["StatefulSet"]["spec"]["serviceName"] == by_kind["Service"]["metadata"]["name"]


def test_the_example_consumer_is_a_static_member_with_the_name_of_its_pod() -> None:
    (container,) = stateful_set("consumer.yaml")["spec"]["template"]["spec"]["containers"]
    words = container["command"]
    assert words[words.index("--instance-id") + 1] == "$(POD_NAME)"


def test_the_autoscaled_consumer_is_scaled_by_what_it_requests_and_leaves_its_group() -> None:
    consumer, scaler = documents(DEPLOY / "kubernetes/consumer-autoscaled.yaml")
    target = scaler["spec"]["scaleTargetRef"]
    assert (target["kind"], target["name"]) == (consumer["kind"], consumer["metadata"]["name"])
    assert "replicas" not in consumer["spec"]
    labels = consumer["spec"]["template"]["metadata"]["labels"]
    assert consumer["spec"]["selector"]["matchLabels"] == labels
    (container,) = consumer["spec"]["template"]["spec"]["containers"]
    (metric,) = scaler["spec"]["metrics"]
    assert metric["resource"]["name"] in container["resources"]["requests"]
    # A static member would keep its partitions for a session after it has been taken away.
    assert "--instance-id" not in container["command"]
    assert "kill -INT 1" in container["lifecycle"]["preStop"]["exec"]["command"]
    (broker,) = stateful_set("suwi.yaml")["spec"]["template"]["spec"]["containers"]
    given = {e["name"]: e.get("value") for e in broker["env"]}
    assert scaler["spec"]["maxReplicas"] == int(given["SUWI_NUM_PARTITIONS"])


def test_the_registry_of_compose_is_optional_pinned_and_reaches_all_brokers() -> None:
    (compose,) = documents(DEPLOY / "compose.yaml")
    registry = compose["services"]["registry"]
    assert registry["profiles"] == ["registry"]
    assert re.fullmatch(r".+:\d+\.\d+\.\d+", registry["image"])
    brokers = {name for name in compose["services"] if name.startswith("broker-")}
    addresses = registry["environment"]["KARAPACE_BOOTSTRAP_URI"].split(",")
    assert {address.partition(":")[0] for address in addresses} == brokers
    assert set(registry["depends_on"]) == brokers
    for address in addresses:
        listeners = compose["services"][address.partition(":")[0]]["environment"]
        assert f"INTERNAL://{address}" in listeners["SUWI_ADVERTISED_LISTENERS"]
    assert all(port.startswith("127.0.0.1:") for port in registry["ports"])


def rendered(template: Path, **facts: Any) -> str:
    jinja2 = pytest.importorskip("jinja2")
    environment = jinja2.Environment(
        trim_blocks=True, undefined=jinja2.StrictUndefined, keep_trailing_newline=True
    )
    environment.filters["combine"] = lambda one, other: {**one, **other}
    return str(environment.from_string(template.read_text()).render(**facts))


def test_the_properties_that_ansible_writes_are_sound(tmp_path: Path) -> None:
    from suwi.cli.doctor.config_checks import check_config

    roles = DEPLOY / "ansible/roles/suwi"
    defaults = documents(roles / "defaults/main.yaml")[0]
    facts = defaults | {
        "suwi_node_id": 1,
        "suwi_rack": "a",
        "suwi_protocol": "SSL",
        "suwi_zookeeper": "zk1:2181,zk2:2181/suwi",
        "suwi_data": [str(Path.home() / "suwi-data")],
        "inventory_hostname": "broker1",
    }
    written = tmp_path / "server.properties"
    written.write_text(rendered(roles / "templates/server.properties.j2", **facts))
    parsed = parse_settings(from_file(str(written), written.read_text()))
    assert parsed.ignored == ()
    check(parsed.config)
    findings = check_config(str(written), local_env())
    assert [f for f in findings if "files" not in f.problem] == []


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_units_limit_the_service_and_raise_the_limit_of_files(unit: Path) -> None:
    text = unit.read_text()
    assert int(re.findall(r"^LimitNOFILE=(\d+)$", text, re.MULTILINE)[0]) >= 65_536
    for line in ("NoNewPrivileges=true", "ProtectSystem=strict", "CapabilityBoundingSet="):
        assert line in text.splitlines()


# -- metrics ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def metrics(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The names of all metrics of a running broker."""
    data = tmp_path_factory.mktemp("deploy") / "data"
    with (
        BrokerProcess(data, options=["--metrics-port", "0"]) as broker,
        urllib.request.urlopen(broker.metrics_url()) as response,
    ):
        text = response.read().decode()
    return set(re.findall(r"^# TYPE (\S+)", text, re.MULTILINE))


def expressions() -> Iterator[tuple[str, str]]:
    for group in documents(DEPLOY / "prometheus/alerts.yaml")[0]["groups"]:
        for rule in group["rules"]:
            yield f"alert {rule['alert']}", rule["expr"]
    dashboard = json.loads((DEPLOY / "grafana/suwi.json").read_text())
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            yield f"panel {panel['title']}", target["expr"]


def test_every_metric_of_alerts_and_dashboard_is_one_of_a_broker(metrics: set[str]) -> None:
    found = list(expressions())
    assert len(found) > 30
    for where, expression in found:
        named = {_SUFFIXES.sub("", name) for name in _METRIC.findall(expression)}
        assert named <= metrics | {"up"}, where
        assert named or expression.startswith("up{"), where


def test_alerts_point_to_sections_that_exist() -> None:
    headings = re.findall(r"^## (.+)$", (ROOT / "docs/operations.md").read_text(), re.MULTILINE)
    anchors = {heading.lower().replace(" ", "-") for heading in headings}
    for group in documents(DEPLOY / "prometheus/alerts.yaml")[0]["groups"]:
        for rule in group["rules"]:
            page, _, anchor = rule["annotations"].get("runbook", "").partition("#")
            if page:
                assert (ROOT / page).is_file()
                assert anchor in anchors, rule["alert"]


def test_the_panels_of_the_dashboard_have_ids_and_places_of_their_own() -> None:
    panels = json.loads((DEPLOY / "grafana/suwi.json").read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert max(x for x, _ in cells) < 24
        assert not cells & taken, panel["title"]
        taken |= cells


# -- with the tools themselves ---------------------------------------------------------------------


def run(*words: str, folder: Path) -> None:
    if shutil.which(words[0]) is None:
        pytest.skip(f"{words[0]} is not installed")
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_alerts_fire_when_they_should() -> None:
    run("promtool", "test", "rules", "alerts-test.yaml", folder=DEPLOY / "prometheus")


def test_the_scrape_config_is_valid() -> None:
    run("promtool", "check", "config", "prometheus.yaml", folder=DEPLOY / "prometheus")


@pytest.mark.parametrize("play", ["site.yaml", "upgrade.yaml"])
def test_ansible_accepts_the_plays(play: str) -> None:
    words = ("ansible-playbook", "-i", "inventory.example.yaml", "--syntax-check", play)
    run(*words, folder=DEPLOY / "ansible")


def test_kubectl_builds_the_manifests() -> None:
    run("kubectl", "kustomize", ".", folder=DEPLOY / "kubernetes")


def test_manifests_match_the_schemas_of_kubernetes() -> None:
    validate = pytest.importorskip("kubernetes_validate")
    for path in (DEPLOY / "kubernetes").glob("*.yaml"):
        for document in documents(path):
            if path.name != "kustomization.yaml":
                validate.validate(document, validate.latest_version(), strict=True)

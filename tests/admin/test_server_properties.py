"""Sources of settings, and their precedence."""

import pytest

from suwi.admin.server_properties import (
    Setting,
    combine,
    from_environment,
    from_file,
    from_options,
    parse_properties,
    parse_settings,
)
from suwi.model.config_kinds import BadConfig


def as_dict(settings: list[Setting]) -> dict[str, str]:
    return {setting.key: setting.value for setting in settings}


def test_properties_may_use_equals_colon_or_blanks() -> None:
    text = "num.partitions=3\nnode.id : 4\nlog.dirs /data\nbroker.rack=\n"
    assert parse_properties(text) == {
        "num.partitions": "3",
        "node.id": "4",
        "log.dirs": "/data",
        "broker.rack": "",
    }


def test_comments_and_empty_lines_of_properties_are_skipped() -> None:
    assert parse_properties("# one\n! two\n\n  # three\nnode.id=1\n") == {"node.id": "1"}


def test_a_line_of_properties_continues_after_a_backslash() -> None:
    text = "listeners=PLAINTEXT://a:1,\\\n    OTHER://b:2\nnode.id=1"
    assert parse_properties(text)["listeners"] == "PLAINTEXT://a:1,OTHER://b:2"


def test_escaped_separators_are_part_of_a_properties_key_or_value() -> None:
    assert parse_properties("a\\=b=c\\:d\\\\") == {"a=b": "c:d\\"}


@pytest.mark.parametrize(
    ("variable", "key"),
    [
        ("SUWI_LOG_RETENTION_MS", "log.retention.ms"),
        ("KAFKA_LOG_RETENTION_MS", "log.retention.ms"),
        ("KAFKA_NODE_ID", "node.id"),
        ("KAFKA_ZOOKEEPER_CONNECT", "zookeeper.connect"),
        ("SUWI_LISTENER_NAME_A__B___C_SSL_CLIENT_AUTH", "listener.name.a_b-c.ssl.client.auth"),
    ],
)
def test_an_environment_variable_sets_a_key(variable: str, key: str) -> None:
    assert from_environment({variable: "7"}) == [Setting(variable, key, "7")]


def test_kafka_variables_of_other_programs_are_ignored() -> None:
    assert from_environment({"KAFKA_HEAP_OPTS": "-Xmx1G", "KAFKA_HOME": "/opt", "HOME": "/"}) == []


def test_suwi_variables_win_over_kafka_ones() -> None:
    environment = {"SUWI_NODE_ID": "2", "KAFKA_NODE_ID": "1", "KAFKA_NUM_PARTITIONS": "3"}
    assert as_dict(from_environment(environment)) == {"node.id": "2", "num.partitions": "3"}


def test_an_unknown_suwi_variable_is_an_error_that_names_it() -> None:
    settings = from_environment({"SUWI_NUM_PARTITION": "3"})
    with pytest.raises(BadConfig, match=r"SUWI_NUM_PARTITION: .* did you mean 'num.partitions'"):
        parse_settings(settings)


@pytest.mark.parametrize(
    "variable",
    [
        "SUWI_PORT",
        "SUWI_SERVICE_HOST",
        "SUWI_SERVICE_PORT_KAFKA",
        "SUWI_PORT_9092_TCP",
        "SUWI_PORT_9092_TCP_ADDR",
        "SUWI_HOME",
    ],
)
def test_a_suwi_variable_that_resembles_no_key_is_ignored_with_a_warning(
    variable: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Kubernetes sets such variables in every container for a service with the name `suwi`."""
    assert from_environment({variable: "tcp://10.0.0.1:9092", "SUWI_NODE_ID": "3"}) == [
        Setting("SUWI_NODE_ID", "node.id", "3")
    ]
    (warning,) = caplog.records
    assert warning.levelname == "WARNING"
    assert warning.__dict__["variable"] == variable


@pytest.mark.parametrize("option", ["num.partitions", "=3", " = "])
def test_an_option_that_sets_nothing_is_refused(option: str) -> None:
    with pytest.raises(BadConfig, match="KEY=VALUE"):
        from_options([option])


def test_an_option_may_hold_equal_signs_in_its_value() -> None:
    assert as_dict(from_options(["broker.rack = a=b "])) == {"broker.rack": "a=b"}


def test_a_later_source_wins() -> None:
    layers = [
        from_file("server.properties", "num.partitions=1\nnode.id=1"),
        from_environment({"SUWI_NUM_PARTITIONS": "2"}),
        from_options(["num.partitions=3"]),
    ]
    assert as_dict(combine(layers)) == {"node.id": "1", "num.partitions": "3"}


def test_a_later_source_wins_under_another_name_of_the_same_setting() -> None:
    layers = [
        from_file("server.properties", "node.id=1\nlog.dirs=/a\nlog.retention.ms=1"),
        from_environment({"KAFKA_BROKER_ID": "2", "KAFKA_LOG_DIR": "/b"}),
        from_options(["node.id=3", "log.retention.hours=2"]),
    ]
    config = parse_settings(combine(layers)).config
    assert (config.node_id, config.log_dirs) == (3, ("/b",))
    assert config.topic.retention_ms == 2 * 3_600_000


def test_within_one_source_milliseconds_win_over_hours() -> None:
    settings = from_file("server.properties", "log.retention.ms=5\nlog.retention.hours=2")
    assert parse_settings(settings).config.topic.retention_ms == 5


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (from_file("a.properties", "node.id=x"), "--config a.properties: invalid value 'x'"),
        (from_environment({"KAFKA_NODE_ID": "x"}), "KAFKA_NODE_ID: invalid value 'x'"),
        (from_options(["node.id=x"]), "--set: invalid value 'x' for configuration node.id"),
        (from_options(["retention.ms=1"]), "--set: unknown .* did you mean 'log.retention.ms'"),
    ],
)
def test_a_mistake_is_reported_with_its_source(settings: list[Setting], message: str) -> None:
    with pytest.raises(BadConfig, match=message):
        parse_settings(settings)


def test_keys_without_effect_are_accepted_and_reported() -> None:
    parsed = parse_settings(from_options(["num.io.threads=8", "process.roles=broker"]))
    assert parsed.ignored == ("num.io.threads", "process.roles")


@pytest.mark.parametrize(
    "setting",
    [
        "inter.broker.protocol.version=2.8-IV1",
        "log.message.format.version=2.8",
        "metric.reporters=",
    ],
)
def test_keys_of_older_brokers_warn_and_do_not_prevent_the_start(setting: str) -> None:
    assert parse_settings(from_options([setting])).ignored == (setting.partition("=")[0],)


@pytest.mark.parametrize(
    ("setting", "problem"),
    [
        ("authorizer.class.name=kafka.Acl", "allowed: nothing, or one of org.apache.kafka"),
        ("create.topic.policy.class.name=Policy", "unknown configuration"),
    ],
)
def test_what_would_protect_a_cluster_of_kafkas_is_refused(setting: str, problem: str) -> None:
    with pytest.raises(BadConfig, match=problem):
        parse_settings(from_options([setting]))

"""Checks of a server.properties. `check_config` runs them all; a broker need not run.

Each check is a function of `Given`, in the table `_CHECKS`.
"""

import os
import resource
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from suwi.admin.finding import ERROR, WARNING, Finding
from suwi.admin.server_properties import Setting, from_file, parse_settings
from suwi.env import Env
from suwi.metadata.zookeeper_settings import zookeeper_settings
from suwi.model.broker_config import BrokerConfig
from suwi.model.config_kinds import BadConfig
from suwi.model.listener_config import (
    ListenerSpec,
    parse_listeners,
    refuse_plain_text_beyond_loopback,
)

_OPEN_FILES_MIN = 65_536
_VOLATILE = ("/tmp", "/var/tmp", "/dev/shm", "/run")
_SECRETS = ("password", "jaas", "zookeeper.auth", "ssl.keystore.key")


class Given(NamedTuple):
    path: str
    env: Env
    config: BrokerConfig
    ignored: tuple[str, ...]
    listeners: Sequence[ListenerSpec]

    @property
    def is_cluster(self) -> bool:
        return bool(self.config.zookeeper_connect)

    def warning(self, problem: str, advice: str) -> Finding:
        return Finding(WARNING, self.path, problem, advice)

    def error(self, problem: str, advice: str) -> Finding:
        return Finding(ERROR, self.path, problem, advice)


def check_config(path: str, env: Env) -> Iterator[Finding]:
    try:
        settings = from_file(path, env.disk.read_bytes(path).decode())
    except (OSError, UnicodeDecodeError) as error:
        problem = getattr(error, "strerror", None) or "not a text file in UTF-8"
        yield Finding(ERROR, path, problem, "check the path and its permissions")
        return
    valid: list[Setting] = []
    for setting in settings:
        try:
            parse_settings([setting])
            valid.append(setting)
        except BadConfig as error:
            text = str(error).removeprefix(f"{setting.source}: ")
            yield Finding(ERROR, path, text, "correct or remove it: a broker refuses to start")
    try:
        parsed = parse_settings(valid)
        listeners = parse_listeners(parsed.config)
    except BadConfig as error:
        yield Finding(ERROR, path, str(error), "a broker refuses to start with it")
        return
    given = Given(path, env, parsed.config, parsed.ignored, listeners)
    for check in _CHECKS:
        yield from check(given)


def _without_effect(given: Given) -> Iterator[Finding]:
    for key in given.ignored:
        yield given.warning(f"{key} has no effect", "remove it; Suwi has no such part")


def _zookeeper(given: Given) -> Iterator[Finding]:
    if given.is_cluster:
        try:
            zookeeper_settings(given.config, given.env)
        except BadConfig as error:
            yield given.error(str(error), "a broker refuses to start with it")


def _plain_text(given: Given) -> Iterator[Finding]:
    try:
        refuse_plain_text_beyond_loopback(given.listeners)
    except BadConfig as error:
        yield given.warning(str(error), "use SSL or SASL_SSL, or a network that is trusted")


def _advertised(given: Given) -> Iterator[Finding]:
    for spec in given.listeners:
        if spec.host in ("0.0.0.0", "::") and spec.advertised_host is None:
            yield given.error(
                f"listener {spec.name} listens on all addresses and advertises localhost",
                f"set advertised.listeners={spec.name}://THIS_HOST:{spec.port}, an address that "
                "clients and the other brokers can reach",
            )
        elif given.is_cluster and spec.advertised_host is None and spec.is_loopback:
            yield given.warning(
                f"listener {spec.name} can be reached from this machine only",
                "in a cluster on several machines, listen on an address that the others reach",
            )


def _replication(given: Given) -> Iterator[Finding]:
    config, least = given.config, given.config.topic.min_insync_replicas
    replicas = config.default_replication_factor
    if given.is_cluster and replicas == 1:
        yield given.warning(
            "default.replication.factor is 1: a new topic is lost with its broker",
            "set default.replication.factor=3 and min.insync.replicas=2",
        )
    if given.is_cluster and config.offsets_topic_replication_factor == 1:
        yield given.warning(
            "offsets.topic.replication.factor is 1: groups stop with one broker",
            "set offsets.topic.replication.factor=3 before the first group is used",
        )
    if least > replicas:
        yield given.error(
            f"min.insync.replicas={least} is more than default.replication.factor={replicas}: "
            "acks=all is always refused",
            f"set min.insync.replicas={max(1, replicas - 1)}",
        )
    elif least == replicas > 1:
        yield given.warning(
            f"min.insync.replicas equals default.replication.factor ({replicas}): acks=all is "
            "refused as soon as one broker is away",
            f"set min.insync.replicas={replicas - 1}",
        )


def _unclean_election(given: Given) -> Iterator[Finding]:
    if given.config.topic.unclean_leader_election_enable:
        yield given.warning(
            "unclean.leader.election.enable=true: an election may lose committed records",
            "remove it, and set it for single topics where availability matters more",
        )


def _data_directories(given: Given) -> Iterator[Finding]:
    for path in given.config.log_dirs:
        absolute = os.path.abspath(path)
        if absolute != path.rstrip("/"):
            yield given.warning(
                f"log.dirs: {path} depends on the directory in which the broker is started",
                "give an absolute path",
            )
        if any(absolute == top or absolute.startswith(f"{top}/") for top in _VOLATILE):
            yield given.error(
                f"log.dirs: {path} is a directory for temporary files",
                "use a directory that survives a restart, such as /var/lib/suwi",
            )
        parent = absolute
        while not given.env.disk.exists(parent):
            parent = os.path.dirname(parent)
        if not (given.env.disk.is_dir(parent) and os.access(parent, os.W_OK | os.X_OK)):
            yield given.error(
                f"log.dirs: this user cannot write to {parent}",
                f"run the check as the broker's user, or chown {absolute} to it",
            )


def _open_files(given: Given) -> Iterator[Finding]:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard != resource.RLIM_INFINITY and hard < _OPEN_FILES_MIN:
        yield given.warning(
            f"this shell may open {hard} files; a broker needs several for each partition",
            f"raise the limit: LimitNOFILE={_OPEN_FILES_MIN} or more in the systemd unit",
        )


def _secrets(given: Given) -> Iterator[Finding]:
    has_secret = any(word in key for key in given.config.given for word in _SECRETS)
    if has_secret and given.env.disk.is_open_to_others(given.path):
        yield given.warning("other users can read the passwords in it", "chmod 640")


_CHECKS = (
    _without_effect,
    _zookeeper,
    _plain_text,
    _advertised,
    _replication,
    _unclean_election,
    _data_directories,
    _open_files,
    _secrets,
)

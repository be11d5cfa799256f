"""Changes of client quotas: set one, remove one."""

from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

from suwi.admin.failure import Failure
from suwi.admin.quotas import entity_text, number_text, read_entity, read_key, read_quotas
from suwi.client.quotas import ClientQuotas
from suwi.console.change import Plan, PlanRow, about
from suwi.console.clusters import ShownCluster
from suwi.security.client_quotas import CLIENT_ID, IP, USER, Entity


class NewQuota(NamedTuple):
    entity: Mapping[str, str]
    """Names by type: `user`, `client-id`, `ip`; `*` is the default."""
    key: str
    value: str


async def set_quota(shown: ShownCluster, asked: NewQuota) -> Plan:
    entity, key = _read(asked.entity, asked.key)
    quota = f"{key}={asked.value.strip()}"
    with about("value"):
        values = read_quotas(entity, [quota])
    return Plan(
        shown.command("quotas set", quota, options=_options(asked.entity)),
        partial(ClientQuotas(shown.client).alter, entity, values),
        f"set {quota} of {entity_text(entity)}",
        [_row(entity, key, await _value(shown, entity, key), number_text(values[key]))],
    )


class OldQuota(NamedTuple):
    entity: Mapping[str, str]
    key: str


async def remove_quota(shown: ShownCluster, asked: OldQuota) -> Plan:
    entity, key = _read(asked.entity, asked.key)
    value = await _value(shown, entity, key)
    if not value:
        raise Failure(f"{entity_text(entity)} has no {key}")
    return Plan(
        shown.command("quotas remove", key, options=_options(asked.entity)),
        partial(ClientQuotas(shown.client).alter, entity, {key: None}),
        f"removed {key} of {entity_text(entity)}",
        [_row(entity, key, value, "")],
    )


def _read(names: Mapping[str, str], key: str) -> tuple[Entity, str]:
    with about("entity"):
        if not names.keys() <= {USER, CLIENT_ID, IP}:
            raise Failure(f"allowed: {USER}, {CLIENT_ID}, {IP}")
        entity = read_entity(names.get(USER), names.get(CLIENT_ID), names.get(IP))
    with about("key"):
        return entity, read_key(key)


def _options(names: Mapping[str, str]) -> list[str]:
    return [word for kind, name in names.items() for word in (f"--{kind}", name)]


async def _value(shown: ShownCluster, entity: Entity, key: str) -> str:
    """As it is now; empty if it is not set."""
    found = (await ClientQuotas(shown.client).describe(entity)).get(entity, {})
    return number_text(found[key]) if key in found else ""


def _row(entity: Entity, key: str, before: str, after: str) -> PlanRow:
    return PlanRow(f"{entity_text(entity)} {key}", before, after)

"""The client quotas of a cluster, and how close clients are to them."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from suwi.admin.quotas import DEFAULT, KEYS, ClosestUsage, entity_text, read_usages
from suwi.client.quotas import ClientQuotas
from suwi.console.clusters import ShownCluster
from suwi.console.page import Part, Query, cut


class QuotaRow(NamedTuple):
    entity: str
    names: Mapping[str, str]
    """Of the entity, by type; `*` is the default."""
    key: str
    limit: float
    """Per second, on each broker."""


class Quotas(NamedTuple):
    part: Part
    rows: Sequence[QuotaRow]
    usages_part: Part
    usages: Sequence[ClosestUsage]
    """Those that are closest to their limits first."""
    left_off: int
    """Clients that the brokers do not tell: they are further away from theirs."""
    silent: Sequence[str]
    """The brokers that do not tell how close clients are, and why."""
    keys: Sequence[str]
    command: str
    usage_command: str


async def read_quotas(shown: ShownCluster, query: Query) -> Quotas:
    found = await ClientQuotas(shown.client).describe()
    rows = [
        QuotaRow(
            entity_text(entity), {kind: name or DEFAULT for kind, name in entity}, key, quotas[key]
        )
        for entity, quotas in found.items()
        for key in quotas
    ]
    rows.sort(key=lambda row: (row.entity, row.key))
    part, shown_rows = cut(rows, query, lambda row: f"{row.entity} {row.key}")
    told = await read_usages(shown.client)
    usages_part, usages = cut(told.rows, query, lambda row: f"{row.entity} {row.key}", "usage_")
    return Quotas(
        part,
        shown_rows,
        usages_part,
        usages,
        told.left_off,
        [f"broker {node}: {why}" for node, why in told.silent.items()],
        KEYS,
        shown.command("quotas list"),
        shown.command("quotas usage"),
    )

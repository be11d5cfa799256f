"""Access rules: validates new ones, finds those to delete, and writes the changes.

Rules are spread over entries of the store by a hash, so that each entry stays small. `create` and
`delete` return when the image has the change. They change rules in the order of the request, as
many at once as one write of the store takes, and stop at the first write that fails.
Invariant: there are rules only if the cluster has finalized their feature level. All registered
brokers support it then, and a version that does not know rules is refused.
"""

import logging
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import chain, islice
from typing import TypeAlias

from suwi.controller.feature_control import FeatureUpdate, UpgradeType, updated
from suwi.controller.metadata_writer import MetadataWriter, check_fits
from suwi.env.slices import in_slices
from suwi.metadata.image import FEATURES, acl_key, encode_acls, encode_features
from suwi.metadata.metadata_follower import MetadataFollower
from suwi.metadata.store import WRITE_BYTES_MAX, Delete, Operation, Put, write_bytes
from suwi.model.errors import BrokerError, InvalidRequest
from suwi.model.features import ACL_VERSION
from suwi.security.acls import AclBinding, AclFilter, check, encode_rule

log = logging.getLogger(__name__)

RULES_MAX = 10_000
"""Of one request, as in Kafka: so many may be created, or deleted."""
_WRITTEN_AT_ONCE = 500
"""What is written at once is applied at once: a few milliseconds for some hundred rules."""
_FILTERS_AT_ONCE = 20
_AT_ONCE = 1000

Deleted: TypeAlias = Sequence[tuple[AclBinding, BrokerError | None]] | BrokerError
"""Of a filter: the rules that it matches, each with the reason why it is still there; or why the
filter was not applied."""


class AclControl:
    def __init__(self, writer: MetadataWriter, follower: MetadataFollower) -> None:
        self._writer = writer
        self._follower = follower

    async def create(self, rules: Sequence[AclBinding]) -> list[BrokerError | None]:
        """The result of each. Some at a time are a decision of their own, so that no other decision
        waits for all."""
        if len(rules) > RULES_MAX:
            raise InvalidRequest(f"a request creates at most {RULES_MAX} access rules")
        results = [_problem(rule) async for rule in in_slices(rules, _AT_ONCE)]
        valid = [number for number, problem in enumerate(results) if problem is None]
        at_once = _WRITTEN_AT_ONCE
        while valid:
            some = [rules[number] for number in valid[:at_once]]
            try:
                created = await self._writer.run_exclusively(partial(self._create, some))
            except BrokerError as error:
                for number in valid:
                    results[number] = error
                break
            valid = valid[created:]
            at_once = min(2 * created, _WRITTEN_AT_ONCE)
        return results

    async def _create(self, rules: Sequence[AclBinding]) -> int:
        """Returns how many of the rules, from the first on, exist now."""
        image = self._follower.image
        while True:
            new = dict.fromkeys(rule for rule in rules if rule not in image.acls)
            if not new:
                return len(rules)
            operations = await self._changed((), new)
            if image.features.level(ACL_VERSION) == 0:
                update = FeatureUpdate(ACL_VERSION, 1, UpgradeType.UPGRADE)
                operations.append(Put(FEATURES, encode_features(updated(image, [update]))))
            if len(rules) == 1 or write_bytes(operations) <= WRITE_BYTES_MAX:
                break
            rules = rules[: len(rules) // 2]
        await self._writer.write(operations)
        log.info("access rules created", extra={"rules": [str(rule) for rule in new]})
        return len(rules)

    async def delete(self, filters: Sequence[AclFilter]) -> list[Deleted]:
        """What each filter has deleted."""
        results: list[Deleted] = []
        rest = iter(filters)
        while some := list(islice(rest, _FILTERS_AT_ONCE)):
            try:
                results += await self._writer.run_exclusively(partial(self._delete, some))
            except BrokerError as error:
                results += [error] * (len(filters) - len(results))
                break
        return results

    async def _delete(self, filters: Sequence[AclFilter]) -> list[Deleted]:
        matched: list[list[AclBinding] | BrokerError] = []
        problems: dict[AclBinding, BrokerError | None] = {}
        for wanted in filters:
            if wanted.has_unknown:
                matched.append(InvalidRequest("a filter has an unknown type or operation"))
                continue
            rules = in_slices(self._follower.image.acls, _AT_ONCE)
            found = [rule async for rule in rules if wanted.matches(rule)]
            if len({*problems, *found}) > RULES_MAX:
                matched.append(InvalidRequest(f"at most {RULES_MAX} rules are deleted at once"))
                continue
            problems |= dict.fromkeys(found)
            matched.append(found)
        await self._delete_rules(problems)
        return [
            found if isinstance(found, BrokerError) else [(rule, problems[rule]) for rule in found]
            for found in matched
        ]

    async def _delete_rules(self, problems: dict[AclBinding, BrokerError | None]) -> None:
        """Notes why a rule is not deleted."""
        left, at_once = list(problems), _WRITTEN_AT_ONCE
        while left:
            some = left[:at_once]
            try:
                operations = await self._changed(some, ())
                if len(some) > 1 and write_bytes(operations) > WRITE_BYTES_MAX:
                    at_once = len(some) // 2
                    continue
                await self._writer.write(operations)
            except BrokerError as error:
                problems |= dict.fromkeys(left, error)
                return
            log.info("access rules deleted", extra={"rules": [str(rule) for rule in some]})
            left = left[len(some) :]

    async def _changed(
        self, removed: Iterable[AclBinding], added: Iterable[AclBinding]
    ) -> list[Operation]:
        """The new values of the entries that these rules are in."""
        known = self._follower.image.acl_shards
        shards: dict[str, set[bytes]] = {}
        changes = chain(((rule, False) for rule in removed), ((rule, True) for rule in added))
        async for rule, is_added in in_slices(changes, _AT_ONCE):
            line = encode_rule(rule)
            key = acl_key(line)
            lines = shards.setdefault(key, set(known.get(key, ())))
            lines.add(line) if is_added else lines.discard(line)
        operations: list[Operation] = []
        for key, lines in sorted(shards.items()):
            put = Put(key, encode_acls(lines))
            check_fits(put)
            operations.append(put if lines else Delete(key))
        return operations


def _problem(rule: AclBinding) -> BrokerError | None:
    try:
        check(rule)
    except ValueError as error:
        return InvalidRequest(str(error))
    return None

"""SCRAM credentials: validates changes and writes them.

Invariant: the store has salted hashes only, with at least the iterations that the RFC requires.
"""

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain, islice
from typing import NamedTuple

from suwi.controller.metadata_writer import MetadataWriter, check_fits
from suwi.env.slices import in_slices
from suwi.metadata.image import encode_scram, scram_key
from suwi.metadata.metadata_follower import MetadataFollower
from suwi.metadata.store import Delete, Operation, Put
from suwi.model.errors import (
    BrokerError,
    DuplicateResource,
    ResourceNotFound,
    UnacceptableCredential,
    UnsupportedSaslMechanism,
)
from suwi.security.scram import (
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    MECHANISM_NUMBERS,
    ScramCredential,
    ScramMechanism,
    make_credential,
)

log = logging.getLogger(__name__)

_USER_CHARACTERS_MAX = 1024
_SALT_BYTES_MAX = 1024
_CHANGES_AT_ONCE = 1000
_USERS_AT_ONCE = 50
_USERS_DECIDED_AT_ONCE = 1000


class Deletion(NamedTuple):
    user: str
    mechanism: int


class Upsertion(NamedTuple):
    user: str
    mechanism: int
    iterations: int
    salt: bytes
    salted_password: bytes

    def __repr__(self) -> str:
        return f"Upsertion({self.user!r}, {self.mechanism}, {self.iterations}, [hidden])"


class ScramDirectory:
    """Read access to the SCRAM credentials, on any broker."""

    def __init__(self, follower: MetadataFollower) -> None:
        self._follower = follower

    def credentials(self, user: str) -> dict[str, ScramCredential]:
        """A user's credentials by mechanism."""
        scram = self._follower.image.scram
        return {name: users[user] for name, users in scram.items() if user in users}

    def users(self) -> list[str]:
        return sorted({user for users in self._follower.image.scram.values() for user in users})


class ScramControl(ScramDirectory):
    def __init__(self, writer: MetadataWriter, follower: MetadataFollower) -> None:
        super().__init__(follower)
        self._writer = writer

    async def alter(
        self, deletions: Sequence[Deletion], upsertions: Sequence[Upsertion]
    ) -> dict[str, BrokerError | None]:
        """Change users; returns the result of each. A user with one invalid change is unchanged.

        Some users at a time are a decision of their own, so that no other decision waits for all.
        """
        results: dict[str, BrokerError | None] = {}
        changes_by_user: dict[str, list[Deletion | Upsertion]] = {}
        asked = chain[Deletion | Upsertion](deletions, upsertions)
        async for change in in_slices(asked, _CHANGES_AT_ONCE):
            changes_by_user.setdefault(change.user, []).append(change)
        rest = iter(changes_by_user.items())
        while users := dict(islice(rest, _USERS_DECIDED_AT_ONCE)):
            try:
                results |= await self._writer.run_exclusively(partial(self._alter, users))
            except BrokerError as error:
                results |= dict.fromkeys(users, error)
        return results

    async def _alter(
        self, changes_by_user: Mapping[str, Sequence[Deletion | Upsertion]]
    ) -> dict[str, BrokerError | None]:
        results: dict[str, BrokerError | None] = {}
        operations: list[Operation] = []
        async for user, changes in in_slices(changes_by_user.items(), _USERS_AT_ONCE):
            try:
                operations.append(self._altered(user, changes))
            except BrokerError as error:
                results[user] = error
            else:
                results[user] = None
        if operations:
            await self._writer.write(operations)
            changed = [user for user, error in results.items() if error is None]
            log.info("SCRAM users changed", extra={"users": changed})
        return results

    def _altered(self, user: str, changes: Sequence[Deletion | Upsertion]) -> Operation:
        """The store operation for a user's changes."""
        if len({change.mechanism for change in changes}) < len(changes):
            raise DuplicateResource("a credential is changed twice in one request")
        if not 0 < len(user) <= _USER_CHARACTERS_MAX:
            raise UnacceptableCredential(
                f"a user name must have from 1 to {_USER_CHARACTERS_MAX} characters"
            )
        credentials = self.credentials(user)
        for change in changes:
            mechanism = MECHANISM_NUMBERS.get(change.mechanism)
            if mechanism is None:
                raise UnsupportedSaslMechanism(f"{change.mechanism} is not a SCRAM mechanism")
            if isinstance(change, Upsertion):
                credentials[mechanism.sasl_name] = _credential(mechanism, change)
            elif credentials.pop(mechanism.sasl_name, None) is None:
                raise ResourceNotFound(
                    f"there is no {mechanism.sasl_name} credential of user {user!r} to delete"
                )
        if not credentials:
            return Delete(scram_key(user))
        put = Put(scram_key(user), encode_scram(credentials))
        check_fits(put)
        return put


def _credential(mechanism: ScramMechanism, change: Upsertion) -> ScramCredential:
    if not ITERATIONS_MIN <= change.iterations <= ITERATIONS_MAX:
        raise UnacceptableCredential(
            f"iterations: allowed: a whole number from {ITERATIONS_MIN} to {ITERATIONS_MAX}"
        )
    if not 0 < len(change.salt) <= _SALT_BYTES_MAX:
        raise UnacceptableCredential(f"the salt must have from 1 to {_SALT_BYTES_MAX} bytes")
    if len(change.salted_password) != mechanism.digest_bytes:
        raise UnacceptableCredential(
            f"a salted password of {mechanism.sasl_name} must have {mechanism.digest_bytes} bytes"
        )
    return make_credential(mechanism, change.salted_password, change.salt, change.iterations)

"""A schema registry (Confluent's, or one that speaks like it): schemas by id and by subject.

Invariant: what is the registry's fault raises `RegistryUnavailable`, never blames a record; only an
id that it does not know is a `BadRecord`. Passwords are in no text.
"""

import base64
import json
import ssl
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

from suwi.decoders.errors import BadRecord, CannotDecode, RegistryUnavailable
from suwi.env import local_env

_ANSWER_S = 10
_ANSWER_BYTES_MAX = 16 << 20
_NOT_FOUND = 404
# Bytes that are no such record at all have ids that nobody knows: they are not asked for each time.
_ASK_AGAIN_MS = 30_000
_UNKNOWN_MAX = 10_000
_MEDIA = "application/vnd.schemaregistry.v1+json, application/json"


@dataclass(frozen=True, slots=True)
class Registry:
    """Where a schema registry is, and how to get in."""

    url: str
    user: str = ""
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    ca_file: str = ""
    """Certificates to trust, in PEM, instead of the machine's."""

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            shown = "" if parts.password else f" {self.url!r}"
            raise CannotDecode(f"the registry's address{shown} must begin with http:// or https://")
        if parts.username is not None:
            raise CannotDecode("user and password of the registry do not belong in its address")


class Reference(NamedTuple):
    name: str
    subject: str
    version: int


class Schema(NamedTuple):
    id: int
    kind: str
    text: str
    references: tuple[Reference, ...]


_unknown: dict[tuple[Registry, int], int] = {}
"""Ids that the registry did not know, and when it said so."""


class NotThere(Exception):
    """The registry says that there is no such thing."""


@lru_cache(maxsize=4096)
def schema_by_id(registry: Registry, schema_id: int, *, serialized: bool = False) -> Schema:
    """What a record was written with. Raises `BadRecord`, `RegistryUnavailable`.

    Kept for the life of the process: an id never changes its meaning.
    """
    asked_ms = _unknown.get((registry, schema_id), 0)
    now_ms = local_env().clock.now_ms()
    if now_ms - asked_ms > _ASK_AGAIN_MS:
        try:
            answer = _get(registry, f"/schemas/ids/{schema_id}", serialized=serialized)
            return _schema({"id": schema_id, **answer})
        except NotThere:
            if len(_unknown) >= _UNKNOWN_MAX:
                _unknown.clear()
            _unknown[registry, schema_id] = now_ms
    raise BadRecord(f"the schema registry has no schema {schema_id}")


def newest_schema(registry: Registry, subject: str, *, serialized: bool = False) -> Schema:
    """Raises `CannotDecode` where there is no such subject, and `RegistryUnavailable`."""
    try:
        path = f"/subjects/{quote(subject, safe='')}/versions/latest"
        return _schema(_get(registry, path, serialized=serialized))
    except NotThere:
        raise CannotDecode(f"the schema registry has no subject {subject!r}") from None


@lru_cache(maxsize=4096)
def referenced_schema(
    registry: Registry, reference: Reference, *, serialized: bool = False
) -> Schema:
    """Raises `BadRecord`, `RegistryUnavailable`."""
    try:
        path = f"/subjects/{quote(reference.subject, safe='')}/versions/{reference.version}"
        return _schema(_get(registry, path, serialized=serialized))
    except NotThere:
        raise BadRecord(f"the schema registry has no schema for {reference.name!r}") from None


def _get(registry: Registry, path: str, *, serialized: bool) -> dict[str, Any]:
    # Commands that print records import this file; few of them ask a registry.
    import urllib.error
    import urllib.request
    from http.client import HTTPException

    query = "?format=serialized" if serialized else ""
    request = urllib.request.Request(registry.url.rstrip("/") + path + query)
    request.add_header("Accept", _MEDIA)
    if registry.token:
        request.add_unredirected_header("Authorization", f"Bearer {registry.token}")
    elif registry.user:
        pair = base64.b64encode(f"{registry.user}:{registry.password}".encode()).decode()
        request.add_unredirected_header("Authorization", f"Basic {pair}")
    tls = None
    if registry.url.startswith("https:"):
        tls = ssl.create_default_context(cafile=registry.ca_file or None)
    try:
        with urllib.request.urlopen(request, timeout=_ANSWER_S, context=tls) as answer:
            found = json.loads(answer.read(_ANSWER_BYTES_MAX))
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == _NOT_FOUND:
            raise NotThere from None
        raise RegistryUnavailable(
            f"the schema registry at {registry.url} answers {error.code} {error.reason}"
        ) from None
    except (OSError, ValueError, HTTPException, RecursionError) as error:
        raise RegistryUnavailable(
            f"the schema registry at {registry.url} cannot be asked: {str(error) or repr(error)}"
        ) from None
    if not isinstance(found, dict) or not isinstance(found.get("schema"), str):
        raise RegistryUnavailable(f"the schema registry at {registry.url} answers without a schema")
    return found


def _schema(answer: dict[str, Any]) -> Schema:
    kind = str(answer.get("schemaType") or "AVRO")
    try:
        references = tuple(
            Reference(str(one["name"]), str(one["subject"]), int(one["version"]))
            for one in answer.get("references") or ()
        )
        return Schema(int(answer["id"]), kind, str(answer["schema"]), references)
    except (LookupError, TypeError, ValueError) as error:
        raise RegistryUnavailable(f"the schema registry answers with nonsense: {error!r}") from None

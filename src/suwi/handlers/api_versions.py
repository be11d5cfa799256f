"""ApiVersions v0-v4. The advertised APIs and versions. v3: client software names (KIP-511), and
the features that the cluster has finalized (KIP-584). v4: also those that this broker supports;
Java clients before 3.8, which send v3, fail at a feature that may have the version 0, as ours may.
"""

import re
from collections.abc import Callable

from kio.schema.errors import ErrorCode

from suwi.handlers.errors import reply
from suwi.model.features import SUPPORTED, Features
from suwi.net.answers import Answer
from suwi.net.dispatch import Request
from suwi.wire.versions import Api

_SOFTWARE_NAME = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?\Z")
_SOFTWARE_NAME_CHARACTERS_MAX = 255
_NAMES_FROM = 3
_SUPPORTED_FEATURES_FROM = 4
_SUPPORTED_FEATURES = [
    {"name": name, "min_version": 0, "max_version": level} for name, level in SUPPORTED.items()
]


class ApiVersions:
    def __init__(self, advertised: tuple[Api, ...], features: Callable[[], Features]) -> None:
        self._features = features
        self._api_keys = [
            {
                "api_key": api.key,
                "min_version": api.advertised_from,
                "max_version": api.max_version,
            }
            for api in advertised
        ]

    def __call__(self, request: Request) -> Answer:
        error = ErrorCode.none
        if request.version >= _NAMES_FROM:
            names = request.message
            software = (names.client_software_name, names.client_software_version)
            is_short = all(len(name) <= _SOFTWARE_NAME_CHARACTERS_MAX for name in software)
            if not is_short or not all(map(_SOFTWARE_NAME.match, software)):
                error = ErrorCode.invalid_request
        api_keys = self._api_keys if error is ErrorCode.none else []
        features = self._features()
        fields = {
            "error_code": error,
            "api_keys": api_keys,
            "supported_features": (
                _SUPPORTED_FEATURES if request.version >= _SUPPORTED_FEATURES_FROM else []
            ),
            "finalized_features_epoch": features.epoch,
            "finalized_features": [
                {"name": name, "max_version_level": level, "min_version_level": level}
                for name, level in features.levels.items()
            ],
        }
        return reply(request, fields)

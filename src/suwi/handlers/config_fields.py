"""The fields of a configuration setting in Kafka's responses."""

from typing import Any

from suwi.controller.config_view import Setting

_TYPES = {
    "boolean": 1,
    "string": 2,
    "int": 3,
    "short": 4,
    "long": 5,
    "double": 6,
    "list": 7,
    "password": 9,
}


def setting_fields(setting: Setting) -> dict[str, Any]:
    """The fields that every response has."""
    return {
        "name": setting.name,
        "value": None if setting.is_sensitive else setting.value,
        "read_only": setting.is_read_only,
        "config_source": setting.source,
        "is_sensitive": setting.is_sensitive,
    }


def described_fields(setting: Setting, *, synonyms: bool, documentation: bool) -> dict[str, Any]:
    """The fields of DescribeConfigs: those of every response, synonyms, type and documentation."""
    return {
        **setting_fields(setting),
        "synonyms": [
            {
                "name": found.name,
                "value": None if setting.is_sensitive else found.value,
                "source": found.source,
            }
            for found in setting.chain
            if synonyms and found.value is not None
        ],
        "config_type": _TYPES[setting.key.kind.name],
        "documentation": setting.key.doc if documentation else None,
    }

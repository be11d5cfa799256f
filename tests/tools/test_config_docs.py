"""docs/configuration.md matches the code."""

import re
from pathlib import Path

from suwi.model.broker_config import BROKER_KEYS
from suwi.model.topic_config import TOPIC_KEYS
from tools.config_docs import NO_EFFECT_YET, TARGET, render

SOURCE = Path(__file__).parents[2] / "src" / "suwi"


def test_the_page_on_configuration_is_up_to_date() -> None:
    assert TARGET.read_text() == render(), "run `make docs`"


def test_keys_without_an_effect_are_exactly_those_that_no_code_reads() -> None:
    code, model = "", ""
    for path in SOURCE.rglob("*.py"):
        if path.parent.name == "model":
            model += path.read_text()
        else:
            code += path.read_text()
    read = set(re.findall(r"\w+", code)) | set(
        re.findall(r"\b(?:self|broker|config)\.(\w+)", model)
    )
    unread = {
        name for name, (attribute, _) in (BROKER_KEYS | TOPIC_KEYS).items() if attribute not in read
    }
    assert unread == NO_EFFECT_YET.keys()

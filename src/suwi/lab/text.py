"""A text of the lab in its languages."""

from collections.abc import Mapping
from dataclasses import dataclass

LANGUAGES = ("en", "ko")


@dataclass(frozen=True)
class Text:
    """In each language; empty if there is none."""

    en: str = ""
    ko: str = ""

    def __add__(self, other: "Text") -> "Text":
        return Text(f"{self.en} {other.en}".strip(), f"{self.ko} {other.ko}".strip())

    def in_language(self, language: str) -> str:
        return (self.ko if language == "ko" else self.en) or self.en or self.ko


def by_language(texts: Mapping[str, Text]) -> dict[str, dict[str, str]]:
    """A table of texts for each language."""
    return {
        language: {key: text.in_language(language) for key, text in texts.items()}
        for language in LANGUAGES
    }

"""Scenario files with what was found in them: how `SUWI_REWRITE=1` writes them."""

from collections.abc import Mapping, Sequence

from suwi.lab.scenario import Scenario


def rendered(
    scenario: Scenario,
    found: Sequence[Sequence[str]],
    instead: Sequence[Mapping[int, Sequence[str]]] = (),
) -> str:
    """The file with what was found in place of what was expected."""
    lines = scenario.text.splitlines()
    for section, different in reversed(list(zip(scenario.instead, instead, strict=False))):
        start, end = section.expected_lines
        lines[start:end] = [
            line for step, changed in different.items() for line in (f"step {step}", *changed)
        ]
    for step, changes in reversed(list(zip(scenario.played, found, strict=True))):
        if step.expected is not None:
            start, end = step.expected_lines
            lines[start:end] = changes
    return "\n".join(lines) + "\n"

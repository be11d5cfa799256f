"""The front end's types are those of the server."""

from tools.console_types import TARGET, typescript


def test_the_types_of_the_front_end_are_those_of_the_server() -> None:
    assert TARGET.read_text() == typescript(), "run tools/console_types.py"

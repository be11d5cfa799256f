"""The limit on the length of functions."""

from tools.check_sizes import FUNCTION_LINES_MAX, complaints, main


def function_of(lines: int, docstring: str = "A long function.") -> str:
    return f'def long(\n    x: int,\n) -> None:\n    """{docstring}"""\n' + "    x = 1\n" * lines


def test_a_long_function_is_found_and_its_signature_does_not_count() -> None:
    assert complaints(function_of(FUNCTION_LINES_MAX)) == []
    ((line, complaint),) = complaints("import x\n\n" + function_of(FUNCTION_LINES_MAX + 1))
    assert line == 3
    assert "long has 56 lines" in complaint


def test_a_long_function_may_give_a_reason() -> None:
    for docstring in ("Size: one table.", "A loop. Size: one loop.", "A loop.\n\n    Size: one."):
        assert complaints(function_of(FUNCTION_LINES_MAX + 1, docstring)) == []


def test_the_word_alone_is_no_reason() -> None:
    for docstring in ("Size:", "Its Size: large", "Sizes of things."):
        assert len(complaints(function_of(FUNCTION_LINES_MAX + 1, docstring))) == 1


def test_the_package_keeps_the_limit() -> None:
    assert main() == 0

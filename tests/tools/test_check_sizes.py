"""The limits on files and classes."""

from tools.check_sizes import CLASS_LINES_MAX, FILE_LINES_MAX, complaints, main


def class_of(lines: int, docstring: str = "A large class.") -> str:
    return f'class Large:\n    """{docstring}"""\n' + "    x = 1\n" * (lines - 2)


def test_a_long_file_is_found() -> None:
    assert complaints("x = 1\n" * FILE_LINES_MAX) == []
    assert [line for line, _ in complaints("x = 1\n" * (FILE_LINES_MAX + 1))] == [1]


def test_a_long_class_is_found() -> None:
    assert complaints(class_of(CLASS_LINES_MAX)) == []
    ((line, complaint),) = complaints("import x\n\n" + class_of(CLASS_LINES_MAX + 1))
    assert line == 3
    assert "class Large has 351 lines" in complaint


def test_a_long_class_may_give_a_reason() -> None:
    for docstring in (
        "Size: one interface.",
        "A loop. Size: one interface.",
        "A loop.\n\n    Size: one.",
    ):
        assert complaints(class_of(CLASS_LINES_MAX + 1, docstring)) == []


def test_the_word_alone_is_no_reason() -> None:
    for docstring in ("Size:", "Its Size: large", "Sizes of things."):
        assert len(complaints(class_of(CLASS_LINES_MAX + 1, docstring))) == 1


def test_the_package_keeps_the_limits() -> None:
    assert main() == 0

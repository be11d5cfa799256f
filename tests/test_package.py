"""What `import suwi` does, and what it leaves alone."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.broker_process import SOURCE


@pytest.mark.parametrize("before", ["", "import hypothesis; "])
def test_kio_gives_hypothesis_no_strategies(tmp_path: Path, before: str) -> None:
    """They take seconds, and leave a directory behind where the user works."""
    program = (
        f"import sys; sys.path.insert(0, {str(SOURCE)!r}); {before}"
        "import suwi.client; from kio.static import _phantom; "
        "assert _phantom.hypothesis is None; "
        "import hypothesis.strategies; print(hypothesis.__name__)"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "hypothesis\n"
    assert list(tmp_path.iterdir()) == []

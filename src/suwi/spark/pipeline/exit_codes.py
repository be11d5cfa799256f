"""How `suwi pipeline` ends, for scripts and supervisors; docs/pipeline.md lists them."""

from typing import Final

DONE: Final = 0
"""All there was is processed, or the run was told to stop by SIGTERM."""
FAILED: Final = 1
"""It failed, and trying again did not help."""
MISTAKE: Final = 2
"""The file or the command line is wrong."""
REFUSED: Final = 3
"""What is asked for would undo or repeat something; the text says how to insist."""
DATA_LOST: Final = 4
"""Records are gone before they were read, and failOnDataLoss says to stop."""
INTERRUPTED: Final = 130
"""Ctrl-C."""

"""`python -m suwi`: the command `suwi`."""

from suwi.cli.main import app

app(prog_name="suwi")

"""`python -m suwi`: the command `suwi`."""

from suwi.cli.main import app

if __name__ == "__main__":
    app(prog_name="suwi")

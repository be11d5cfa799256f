"""Names, options and help of the commands. The implementations are in the parent package.

The modules here import only typer at the top, so that `suwi --help` is fast.
"""

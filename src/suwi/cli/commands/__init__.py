"""What people type: each command's name, options and help. The work is done one folder up.

Nothing here imports more than typer at the head, so that `suwi --help` answers at once.
"""

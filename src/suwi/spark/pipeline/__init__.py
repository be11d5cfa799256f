"""A pipeline in a file: `pipeline.yaml` checked, shown as Python, run, backfilled and reset."""

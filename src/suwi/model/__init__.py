"""Types without behaviour that all packages share: ids, errors, configuration keys."""

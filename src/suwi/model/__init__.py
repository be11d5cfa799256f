"""Nouns without behaviour: ids, errors, configuration keys."""

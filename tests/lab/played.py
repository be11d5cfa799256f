"""Scenarios of the package, each played once for all tests that look at it."""

from functools import cache

from suwi.lab import site

play_all = cache(site.play_all)

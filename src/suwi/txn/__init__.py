"""Producers across restarts: their ids, and later their transactions."""

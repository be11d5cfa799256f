"""Builds a broker from its configuration and its environment: all components are wired here."""

"""Where objects are wired together: a broker from its configuration and its environment."""

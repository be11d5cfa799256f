"""`suwi doctor`: tables of checks of a configuration, of a data directory and of a cluster."""

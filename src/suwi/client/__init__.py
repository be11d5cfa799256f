"""A small asyncio client: for brokers among themselves, the command line and tests."""

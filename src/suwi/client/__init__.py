"""A small asyncio client, for inter-broker requests, the command line and tests."""

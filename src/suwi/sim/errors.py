"""How a simulation fails by itself, apart from a checker or a test that raises."""


class SimError(Exception):
    """The run cannot go on."""


class Deadlock(SimError):
    """Nothing is ready, no timer is set, and somebody still waits."""


class Livelock(SimError):
    """Callbacks run and run, and virtual time stands still."""


class Unhandled(SimError):
    """A callback or a task raised, and nobody handled it."""

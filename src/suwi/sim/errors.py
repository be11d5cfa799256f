"""How a simulation fails itself, apart from a checker or a test that raises."""


class SimError(Exception):
    """The run cannot continue."""


class Deadlock(SimError):
    """Nothing is ready, no timer is set, and some task still waits."""


class Livelock(SimError):
    """Callbacks run without end, and virtual time does not advance."""


class Unhandled(SimError):
    """An unhandled exception of a callback or a task."""

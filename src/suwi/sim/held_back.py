"""What is not drawn yet: it comes to faults of the brokers that are known and not mended.

Each entry has a run in `tests/sim/test_held_back.py` that is expected to fail. When the fault is
mended that test says so, and the entry goes.
"""

FAIL_DELETION, FAIL_ONCE, DENY = "fail deletion", "fail disk once", "deny access"
LOOK_UPS, LONG_CUT, PIPELINES = "look-ups under deletion", "long cut", "pipelines"
NEWEST_OFFSET = "newest offset fell"

HELD_BACK: dict[str, str] = {
    FAIL_DELETION: "fault 5: an error while an image is applied ends the metadata follower",
    FAIL_ONCE: "fault 5: an error while an image is applied ends the metadata follower",
    DENY: "fault 5: an error while an image is applied ends the metadata follower",
    LOOK_UPS: "fault 6: a look-up in a deleted log takes the data directory offline",
    LONG_CUT: "fault 4: a fetcher ends after 1,024 failures",
    NEWEST_OFFSET: "fault 11: right after an election LATEST may go back (KIP-207)",
    PIPELINES: "fault 3: out of order behind a refusal for storage",
}
"""Kinds of trouble, of clients and of violations, and which fault they come to."""

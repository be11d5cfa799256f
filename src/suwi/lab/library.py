"""The scenarios of the package: their subjects, their order, and their files."""

from importlib.resources import files

from suwi.lab.scenario import Scenario, parse
from suwi.lab.text import Text

_FOLDER = "scenarios"
SUBJECTS = {
    Text("Recovery and the leader epoch", "복구와 리더에포크"): """
        kip-101 diverging-logs uncommitted-read
    """.split(),
    Text("In-sync replicas, acks and the high watermark", "ISR, acks, 하이워터마크"): """
        in-sync-set-of-one acks-all-waits-for-all acks-side-by-side followers-learn-the-watermark
        min-insync-replicas read-from-followers
    """.split(),
    Text("Elections and the controller", "리더 선출과 컨트롤러"): """
        unclean-election controller-death preferred-leader
    """.split(),
    Text("Producers: duplicates, loss and order", "프로듀서: 중복, 유실, 순서"): """
        lost-acknowledgement batch-resend retries-0 in-flight-reordering
        idempotence-ends-with-restart zombie-producer
    """.split(),
    Text("Consumers and commits", "컨슈머와 커밋"): """
        crash-before-commit auto-commit-loss auto-commit-duplicate max-poll-interval
    """.split(),
    Text("Groups and rebalancing", "컨슈머 그룹과 리밸런싱"): """
        range-roundrobin-sticky eager-cooperative-kip-848 static-member-restart
    """.split(),
    Text("Transactions", "트랜잭션"): """
        consume-transform-produce aborted-records hanging-transaction
    """.split(),
    Text("Files, retention and compaction", "파일, 보존, 컴팩션"): """
        leader-epoch-checkpoint replication-offset-checkpoint index-look-up
        retention-overtakes-a-reader compaction
    """.split(),
}
"""The scenarios by subject, in the order in which they are listed."""
ORDER = tuple(name for names in SUBJECTS.values() for name in names)


def text_of(name: str) -> str:
    return (files("suwi.lab") / _FOLDER / f"{name}.txt").read_text(encoding="utf-8")


def scenario_of(name: str) -> Scenario:
    return parse(text_of(name))

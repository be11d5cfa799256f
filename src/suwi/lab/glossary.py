"""The words of the lines that scenarios assert, explained in both languages.

The lines themselves are the same in every language, because they are compared.
"""

import re
from collections.abc import Iterable

from suwi.lab.text import Text

TERMS: dict[str, tuple[str, Text]] = {
    "in sync": (
        r"\bin sync ",
        Text("the in-sync replicas (ISR)", "ISR, 리더와 동기화된 복제본들"),
    ),
    "epoch": (
        r"(, |^\S+: )epoch \d|\(epoch ",
        Text(
            "leader epoch; it rises with every new leader", "리더에포크. 리더가 바뀔 때마다 오른다"
        ),
    ),
    "start": (
        r"\bstart \d",
        Text("the start of the log; all before is deleted", "로그의 시작. 그 앞은 지워졌다"),
    ),
    "end": (
        r"\bend \d",
        Text(
            "the end of the log, the offset of the next record",
            "로그의 끝(LEO). 다음 메시지의 오프셋이다",
        ),
    ),
    "hw": (
        r"\bhw \d",
        Text(
            "high watermark; what is below it is committed", "하이워터마크. 그보다 앞은 커밋되었다"
        ),
    ),
    "eligible": (
        r"\beligible ",
        Text(
            "not in sync, but has all that is committed (KIP-966)",
            "ISR 밖이지만 커밋된 메시지를 모두 가진 복제본 (KIP-966)",
        ),
    ),
    "suspect": (
        r"\bsuspect ",
        Text(
            "may lack its last records after a power loss",
            "정전으로 끝부분을 잃었을 수 있는 복제본",
        ),
    ),
    "controller": (
        r"\bcontroller b\d",
        Text("the broker that elects leaders", "리더를 선출하는 브로커"),
    ),
    "fetches": (
        r" fetches from ",
        Text(
            "a follower asks for records from here on, and so has all before",
            "팔로워가 이 오프셋부터 요청한다. 그 앞은 모두 가졌다는 뜻이다",
        ),
    ),
    "gets": (
        r" gets (records|hw)",
        Text("what the leader's answer to a fetch has", "fetch에 대한 리더의 응답에 든 것"),
    ),
    "is sent": (
        r" is sent to ",
        Text("with acks=0 there is no answer", "acks=0이어서 응답이 없다"),
    ),
    "is acknowledged": (
        r" is acknowledged at ",
        Text("the producer gets its answer (ack)", "프로듀서가 응답(ack)을 받았다"),
    ),
    "is refused": (
        r" is refused",
        Text("the client gets an error", "클라이언트가 오류를 받았다"),
    ),
    "gets no answer": (
        r" gets no answer",
        Text("the producer does not know what happened", "프로듀서는 결과를 알지 못한다"),
    ),
    "shows": (
        r"^\w+ shows ",
        Text("what a consumer reads there", "컨슈머가 그 브로커에서 읽는 것"),
    ),
    "has": (
        r"^b\d .*has (\d|nothing)",
        Text("what is on its disk, committed or not", "커밋과 상관없이 디스크의 로그에 있는 것"),
    ),
    "reported": (
        r"^reported: ",
        Text("what the cluster itself tells of a loss", "클러스터가 스스로 알리는 유실"),
    ),
    "violated": (
        r"^violated: ",
        Text(
            "an invariant does not hold, because of what is planted",
            "심어 둔 동작 때문에 불변식이 깨졌다",
        ),
    ),
}


def explained(lines: Iterable[str], known: set[str], language: str) -> list[str]:
    """The words of these lines that are not known yet, each with what it means. They are then."""
    text = list(lines)
    found = [
        word
        for word, (pattern, _) in TERMS.items()
        if word not in known and any(re.search(pattern, line) for line in text)
    ]
    known.update(found)
    return [f"{word}: {TERMS[word][1].in_language(language)}" for word in found]

"""An event in words, in one line: `suwi lab show` prints it, the pages of recordings show it."""

from collections.abc import Iterable, Sequence

from suwi.lab import events
from suwi.lab.live_recorder import NEW_EPOCH
from suwi.lab.text import Text
from suwi.metadata import partition_history

_TEXTS = {
    "nobody": Text("nobody", "없음"),
    "none": Text("none", "없음"),
    "epoch": Text(" (epoch {})", " (에포크 {})"),
    "batch": Text("[{}-{} epoch {}]", "[{}-{} 에포크 {}]"),
    "in-sync": Text("{partition}: in sync {members}", "{partition}: ISR {members}"),
    "proposal": Text(
        "{partition}: {who} proposes in sync {members}", "{partition}: {who}의 제안 ISR {members}"
    ),
    "controller": Text("{who} is the controller", "컨트롤러: {who}"),
    "election": Text("{partition}: {who} leads", "{partition}: 리더 {who}"),
    "truncation": Text(
        "{where}: truncated to {offset}, without {removed}",
        "{where}: {offset}까지 잘라 냄, 없어진 것 {removed}",
    ),
    "fetch": Text(
        "{where}: fetches from {offset}, of b{leader}",
        "{where}: b{leader}에 오프셋 {offset}부터 fetch",
    ),
    "gets": Text(
        "gets {size_bytes} bytes from offset {offset}",
        "오프셋 {offset}부터 {size_bytes}바이트를 받음",
    ),
    "diverging": Text(
        "the logs diverge: the leader's epoch {} ends at {}",
        "로그가 갈라짐: 리더의 에포크 {}의 끝은 {}",
    ),
    "follower": Text(
        "{where}: follower b{follower} has {has}", "{where}: 팔로워 b{follower}의 끝 {has}"
    ),
    "unknown": Text("not fetched yet", "아직 모름"),
    "caught up": Text(", last caught up at {:g} s", ", 마지막으로 따라잡은 시각 {:g}초"),
    "send": Text(
        "{client} sends {values} to {partition}, acks={acks} (send {number})",
        "{client}: {partition}에 {values} 전송, acks={acks} (전송 {number})",
    ),
    "sends": Text(
        "{client} sends {records} records to {partition}, acks={acks} (send {number})",
        "{client}: {partition}에 메시지 {records}개 전송, acks={acks} (전송 {number})",
    ),
    "times": Text(", {} times", ", {}번"),
    "acknowledged": Text(
        "{client}: acknowledged at {offset} (send {number})",
        "{client}: 오프셋 {offset} 응답(ack)을 받음 (전송 {number})",
    ),
    "forgotten": Text(
        "{client}: sent, without an answer (send {number})",
        "{client}: 응답 없이 전송됨 (전송 {number})",
    ),
    "unanswered": Text("{client}: {error} (send {number})", "{client}: {error} (전송 {number})"),
    "group": Text("{group}: {state}, {members} members", "{group}: {state}, 멤버 {members}명"),
    "step": Text("step {step}: {lines}", "{step}단계: {lines}"),
    "leads": Text("leads", "리더가 됨"),
    "follows": Text("follows", "팔로워가 됨"),
    "removed": Text("has no replica any more", "복제본이 없어짐"),
    "appends": Text("appends {}", "추가 {}"),
    "epochs": Text("epochs {}", "에포크 {}"),
    # What recordings say themselves, in English.
    **{
        each: Text(each, ko)
        for each, ko in (
            (events.STARTED, "프로세스가 시작된다"),
            (events.ENDED, "프로세스가 종료된다"),
            (events.POWER_LOST, "장비의 전원이 나간다"),
            (events.SILENT, "브로커가 응답하지 않는다"),
            (events.ANSWERS, "브로커가 다시 응답한다"),
            (events.DELETED, "파티션이 삭제된다"),
            ("the partition is created", "파티션이 만들어진다"),
            ("no replica may lead", "리더가 될 수 있는 복제본이 없다"),
            ("unclean: no in-sync replica is left", "unclean: ISR에 남은 복제본이 없다"),
            ("a replica that may lead is back", "리더가 될 수 있는 복제본이 돌아왔다"),
            ("the replicas change", "복제본이 바뀐다"),
            ("the preferred leader", "선호 리더"),
            ("the leader stops", "리더가 멈춘다"),
            ("the leader is gone", "리더가 사라졌다"),
            (partition_history.NO_LEADER, "리더가 될 수 있는 복제본이 없다"),
            (partition_history.LEADER_AWAY, "이전 리더가 없다"),
            (partition_history.REPLICA_BACK, "복제본이 돌아왔다"),
            (partition_history.OTHER_PREFERRED, "다른 선호 리더"),
            (partition_history.UNCLEAN_ELECTION, "unclean 선출"),
            (NEW_EPOCH, "새 리더에포크"),
            ("no answer", "응답이 없다"),
        )
    },
}


def event_text(event: events.Event, language: str = "en") -> str:
    return _Words(language).of(event)


class _Words:
    def __init__(self, language: str) -> None:
        self._language = language

    def _say(self, key: str, *values: object, **named: object) -> str:
        text = _TEXTS[key].in_language(self._language)
        return text.format(*values, **named)

    def _own(self, text: str) -> str:
        """A text of the recording, in the language if it is a known one."""
        return self._say(text) if text in _TEXTS else text

    def of(self, event: events.Event) -> str:
        who = self._say("nobody") if event.broker is None else f"b{event.broker}"
        common = {**vars(event), "who": who, "where": f"{who} {event.partition}"}
        epoch = "" if event.epoch is None else self._say("epoch", event.epoch)
        match event:
            case events.ReplicaChanged():
                changes = ", ".join(self._changes(event, epoch)) or epoch.strip()
                return f"{common['where']}: {changes}"
            case events.FollowerSeen():
                return self._say("follower", **common, has=self._has(event)) + epoch
            case events.InSync():
                key = "in-sync" if event.is_confirmed else "proposal"
                members = " ".join(f"b{each}" for each in event.members) or self._say("none")
                return self._say(key, **{**common, "members": members}) + epoch
            case events.Election(partition=None):
                return self._say("controller", **common) + epoch
            case events.Election():
                return f"{self._say('election', **common)}{epoch}: {self._own(event.reason)}"
            case events.Truncation():
                removed = self._batches(event.removed)
                return self._say("truncation", **{**common, "removed": removed})
            case events.Loss():
                facts = ", ".join(f"{key} {value}" for key, value in event.facts.items())
                return f"{event.partition or ''} {event.what}: {facts}".strip()
            case events.Fetch():
                return self._say("fetch", **common) + epoch + self._times(event.times)
            case events.FetchAnswer():
                answer = ", ".join(self._answer(event, common))
                return f"{common['where']}: {answer}{self._times(event.times)}"
        return self._of_others(event, common, epoch)

    def _of_others(self, event: events.Event, common: dict[str, object], epoch: str) -> str:
        """Of clients, coordinators, faults and scenarios."""
        match event:
            case events.Send(records=int()):
                return self._say("sends", **common) + self._times(event.times)
            case events.Send():
                values = " ".join(f'"{value}"' for value in event.values)
                return self._say("send", **{**common, "values": values})
            case events.SendResult(error=str(error)):
                told = self._say("unanswered", **{**common, "error": self._own(error)})
                return told + self._times(event.times)
            case events.SendResult():
                told = "forgotten" if event.offset is None else "acknowledged"
                return self._say(told, **common) + self._times(event.times)
            case events.Told() | events.Violation():
                return event.what
            case events.GroupState():
                return self._say("group", **common) + epoch
            case events.TransactionState():
                return f"{event.transactional_id}: {event.state}{epoch}"
            case events.Fault():
                what = self._own(event.what)
                return what if event.broker is None else f"{common['who']}: {what}"
            case events.StepBegins():
                return self._say("step", **common, lines="; ".join(event.commands))
            case events.StepEnds():
                return self._say("step", **common, lines="; ".join(event.changes))
        raise AssertionError(f"no words for {event.kind}")

    def _times(self, times: int) -> str:
        return "" if times == 1 else self._say("times", times)

    def _batches(self, batches: Iterable[Sequence[object]]) -> str:
        return " ".join(self._say("batch", *batch[:3]) for batch in batches)

    def _changes(self, event: events.ReplicaChanged, epoch: str) -> Iterable[str]:
        if event.is_removed:
            yield self._say("removed")
        if event.leads is not None:
            yield self._say("leads" if event.leads else "follows") + epoch
        if event.appended:
            yield self._say("appends", self._batches(event.appended))
        marks = {
            "end": event.offset,
            "hw": event.high_watermark,
            "lso": event.last_stable,
            "start": event.log_start,
        }
        yield from (f"{name} {value}" for name, value in marks.items() if value is not None)
        if event.epochs is not None and not event.appended:
            listed = " ".join(f"({epoch} {start})" for epoch, start in event.epochs)
            yield self._say("epochs", listed or self._say("none"))

    def _has(self, event: events.FollowerSeen) -> str:
        has = self._say("unknown") if event.offset is None else str(event.offset)
        since = event.caught_up_s
        return has if since is None else has + self._say("caught up", since)

    def _answer(self, event: events.FetchAnswer, common: dict[str, object]) -> Iterable[str]:
        yield event.error or self._say("gets", **common)
        yield f"hw {event.high_watermark}"
        if event.diverging is not None:
            yield self._say("diverging", *event.diverging)

"""The page on which a recording is played, or two beside each other: its frame and its words.

`body` is what a page of the site has between head and foot; `web/play.js` fills it. What happens is
said in words here (`event_text`), so the script needs no words of its own.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from suwi.lab.event_text import event_text
from suwi.lab.events import Recording
from suwi.lab.picture import WORDS
from suwi.lab.text import Text, by_language

SCRIPTS = ("drawing.js", "play.js")
_BUTTONS = {
    "first": "⇤",
    "previous-mark": "«",
    "previous": "‹",
    "play": "▶",
    "next": "›",
    "next-mark": "»",
    "last": "⇥",
}
_TEXTS = {
    "play": Text("Play", "재생"),
    "first": Text("To the beginning", "처음으로"),
    "previous-mark": Text("To the previous mark (Shift ←)", "이전 표시로 (Shift ←)"),
    "previous": Text("One event back (←)", "이전 이벤트 (←)"),
    "next": Text("One event on (→)", "다음 이벤트 (→)"),
    "next-mark": Text("To the next mark (Shift →)", "다음 표시로 (Shift →)"),
    "last": Text("To the end", "끝으로"),
    "keys": Text(
        "<kbd>←</kbd> <kbd>→</kbd> event, with <kbd>Shift</kbd> mark. "
        "The address names the moment.",
        "<kbd>←</kbd> <kbd>→</kbd> 이벤트, <kbd>Shift</kbd>와 함께 표시. "
        "주소가 그 순간을 가리킨다.",
    ),
    "line": Text("Time line", "시간"),
    "moment": Text("Moment", "순간"),
    "partition": Text("Partition", "파티션"),
    "script": Text("This page needs scripts.", "이 페이지에는 스크립트가 필요하다."),
}
_LABELS = by_language(_TEXTS)
_SCRIPT_TEXTS = {
    "controller": Text("controller", "컨트롤러"),
    "controller epoch": Text("epoch", "에포크"),
    "confirmed": Text("in-sync set, confirmed", "확정된 ISR"),
    "proposed": Text("proposed by the leader", "리더가 제안한 ISR"),
    "caught up": Text("caught up", "따라잡음"),
    "not caught up": Text("not caught up", "못 따라잡음"),
    "behind for": Text("behind for {} s", "{}초 동안 뒤처짐"),
    "frozen": Text("frozen", "멈춤"),
    "segment": Text("segment {}", "세그먼트 {}"),
    "fetches": Text("fetch from {}", "{}부터 fetch"),
    "records": Text("records, HW {}", "메시지, HW {}"),
    "diverging": Text("diverges at {}", "{}에서 갈라짐"),
    "cut": Text("✂", "✂"),
    "epochs": Text("epoch cache", "에포크 캐시"),
    "producer": Text("producer", "프로듀서"),
    "producer state": Text("{}: epoch {}", "{}: 에포크 {}"),
    "sequence": Text(", sequence {}", ", 시퀀스 {}"),
    "open": Text(", transaction since {}", ", {}부터 트랜잭션"),
    "no replica": Text(
        "No replica of the partition is known yet.", "아직 이 파티션의 복제본이 없다."
    ),
    "waits": Text("waits", "기다림"),
    "unanswered": Text("sent, no answer wanted", "전송됨, 응답 없음"),
    "acknowledged": Text("✓ offset {}", "✓ 오프셋 {}"),
    "one record": Text("1 record", "메시지 1개"),
    "one batch": Text("{} records", "메시지 {}개"),
    "some batches": Text("{} records in {} batches", "메시지 {}개, 배치 {}개"),
    "group": Text("group", "그룹"),
    "group state": Text("{}, {} members, epoch {}", "{}, 멤버 {}명, 에포크 {}"),
    "transaction": Text("transaction", "트랜잭션"),
    "transaction state": Text("{}, producer {}, epoch {}", "{}, 프로듀서 {}, 에포크 {}"),
    "loss": Text("reported", "보고됨"),
    "violation": Text("violated", "위반"),
    "step": Text("Step {} of {}", "{}단계 / 전체 {}단계"),
    "commands": Text("Commands", "명령"),
    "changes": Text("What changed", "달라진 것"),
    "count": Text("{} of {} · {}", "{} / {} · {}"),
    "apart": Text("Only in “{}”:", "‘{}’에만:"),
    "parts": Text("The runs part here.", "여기서 두 실행이 갈라진다."),
    "since": Text("e{} from {}", "e{} {}부터"),
    "lane prose": Text("steps", "단계"),
    "lane election": Text("elections", "리더 선출"),
    "lane truncation": Text("truncations", "잘라 냄"),
    "lane loss": Text("losses", "유실"),
    "lane fault": Text("faults", "장애"),
    "lane violation": Text("violations", "위반"),
}
_SCRIPT_WORDS = by_language(_SCRIPT_TEXTS)


@dataclass(frozen=True)
class Shown:
    """A recording on the page."""

    run: str
    """The name of its script."""
    recording: Recording
    label: str = ""
    """What it is; needed beside another."""


def words_of(language: str) -> dict[str, str]:
    """Those that the scripts need."""
    return WORDS[language] | _SCRIPT_WORDS[language]


def body(shown: Sequence[Shown], language: str) -> str:
    labels = _LABELS[language]
    buttons = "".join(
        f'<button type="button" data-go="{key}" title="{labels[key]}" aria-label="{labels[key]}">'
        f'<span aria-hidden="true">{sign}</span></button>\n'
        for key, sign in _BUTTONS.items()
    )
    panels = "".join(
        f'<section class="panel">{f"<h2>{escape(each.label)}</h2>" if each.label else ""}\n'
        f'<div class="seen"></div>\n<div class="beside"></div>\n</section>\n'
        for each in shown
    )
    return f"""<noscript><p class="note">{labels["script"]}</p></noscript>
<section class="line" aria-label="{labels["line"]}">
<div class="lanes" aria-hidden="true"></div>
<div class="slide"><i class="parting" hidden></i>
<input type="range" id="moment" min="0" value="0" step="1" aria-label="{labels["moment"]}"></div>
<div class="controls">
{buttons}<span id="count"></span>
<label>{labels["partition"]} <select id="partition"></select></label>
<span class="soft">{labels["keys"]}</span>
</div>
<p id="now" role="status"></p>
</section>
<div class="panels{" two" if len(shown) > 1 else ""}">
{panels}</div>
{"".join(_said(each, language) for each in shown)}"""


def _said(shown: Shown, language: str) -> str:
    """Every event in words, as data."""
    lines = [event_text(event, language) for event in shown.recording.events]
    listed = json.dumps(lines, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    return f'<script type="application/json" data-said="{escape(shown.run)}">{listed}</script>\n'

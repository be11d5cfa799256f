"""The commands of a scenario: how each is written and what it does.

`suwi.lab.stage` runs them, those to producers and consumers `suwi.lab.clients`.
"""

import re
import shlex
from dataclasses import dataclass
from difflib import get_close_matches

_BROKER = r"b[1-4]"
_HOST = r"[bpc][1-4]"
_CLIENT_SETTINGS = r"( [a-z.]+=\S+)"
_TIME = r"\d{1,5}(\.\d+)?(ms|s)"
_VALUES = r'("[^"]*"|\S+)( ("[^"]*"|\S+))*'
_REPLICAS = rf"\S+( {_BROKER})+( partitions=[1-9]\d{{0,2}}| (?!partitions=)\S+=\S+)*"


class CannotRun(Exception):
    """A command is written correctly and cannot be run in this state."""


@dataclass(frozen=True)
class Command:
    usage: str
    what: str
    pattern: str
    """Of what follows the command's name."""


COMMANDS: dict[str, Command] = {
    "topic": Command(
        "topic orders b1 b2 b3 min.insync.replicas=2",
        "create a topic with these replicas and settings; of one partition, or `partitions=2`",
        _REPLICAS,
    ),
    "topic-at": Command(
        "topic-at b4 other b1", "ask a broker to create one", rf"{_BROKER} {_REPLICAS}"
    ),
    "delete": Command("delete orders", "delete the topic", r"\S+"),
    "produce": Command(
        'produce b1 acks=all "x"',
        "send a batch to a broker, with acks=0, 1 or all; `produce b1 orders …` names the topic",
        rf"{_BROKER}( [^\s=]+)? acks=(0|1|all) {_VALUES}",
    ),
    "put": Command(
        "put b1 apple=3 pear=",
        "send a batch of records with keys, with acks=all; one without a value is a tombstone",
        rf"{_BROKER}( [^\s=]+=\S*)+",
    ),
    "fill": Command(
        "fill b1 batches=10 records=16 bytes=1000",
        "send batches of records of this size, one after the other",
        rf"{_BROKER} batches=\d+ records=\d+ bytes=\d+",
    ),
    "producer": Command(
        "producer p1 acks=all retries=0",
        "start a producer on a machine of its own, with settings of Kafka's producer",
        rf"p[1-4]{_CLIENT_SETTINGS}*",
    ),
    "send": Command(
        'send p1 "x"',
        "it sends a batch; `send p1 topic=orders …` names the topic; with a transactional.id the "
        "first one begins a transaction",
        rf"p[1-4]( topic=\S+)? {_VALUES}",
    ),
    "send-offsets": Command(
        "send-offsets p1 c1",
        "it adds the offsets of a consumer to its transaction",
        "p[1-4] c[1-4]",
    ),
    "consumer": Command(
        "consumer c1 orders group.id=shop enable.auto.commit=false",
        "start a consumer of topics, with settings of Kafka's consumer",
        rf"c[1-4]( [^\s=]+)+{_CLIENT_SETTINGS}+",
    ),
    "poll": Command("poll c1", "its application calls poll once, for 5 s at most", r"c[1-4]"),
    "process": Command(
        "process c1 2", "it processes the next two records, or all", r"c[1-4]( \d+)?"
    ),
    "commit": Command(
        "commit c1 processed",
        "a consumer commits what it has processed; `commit c1`: all that poll has returned; "
        "`commit p1`: a producer commits its transaction",
        r"(p[1-4]|c[1-4]( processed)?)",
    ),
    "abort": Command("abort p1", "it aborts its transaction", r"p[1-4]"),
    "loop": Command("loop c1", "it polls, processes and commits again and again", r"c[1-4]"),
    "hang": Command("hang c1", "it does not poll any more; heartbeats go on", r"c[1-4]"),
    "close": Command("close c1", "it ends and leaves its group", r"c[1-4]"),
    "crash": Command(
        "crash c1 p1",
        "the process of a client, or of several, ends at once (SIGKILL)",
        r"[pc][1-4]( [pc][1-4])*",
    ),
    "committed": Command("committed shop", "the committed offsets of a group", r"\S+"),
    "tally": Command("tally", "how often each record of the topic was processed", r"(\S+)?"),
    "pauses": Command("pauses", "how long nobody has read a partition since the last `pauses`", ""),
    "delete-records": Command(
        "delete-records b1 2", "delete those below offset 2", rf"{_BROKER} \d+"
    ),
    "read": Command(
        "read b1",
        "what a broker returns to a consumer; `read b1 orders` names the topic, `read b1 rack=r2` "
        "the consumer's rack, `read b1 from=2` the offset",
        rf"{_BROKER}( [^\s=]+)?( rack=\S+)?( from=\d+)?",
    ),
    "fetches": Command(
        "fetches", "list the fetches of followers until the end of the step, and what they get", ""
    ),
    "fetch-at": Command(
        "fetch-at b1 epoch=0",
        "what it returns to a fetch with that leader epoch",
        rf"{_BROKER} epoch=\d+",
    ),
    "latest": Command(
        "latest b1 v4",
        "the end offset that it returns, in that version",
        rf"{_BROKER}( v([1-9]|1[01]))?",
    ),
    "logs": Command("logs", "the records in every replica's log", ""),
    "file": Command(
        "file leader-epoch-checkpoint",
        "what this file of every replica says; the other one is replication-offset-checkpoint",
        "(leader-epoch|replication-offset)-checkpoint",
    ),
    "index": Command("index b1", "the entries of the offset index", _BROKER),
    "look-up": Command(
        "look-up b1 100", "how a broker finds an offset through the index", rf"{_BROKER} \d+"
    ),
    "kill": Command("kill b1", "its process ends at once (SIGKILL)", _BROKER),
    "power-off": Command("power-off b1", "its machine loses power", _BROKER),
    "start": Command("start b1", "start it and wait until it is in service", _BROKER),
    "begin": Command("begin b1", "start it without waiting", _BROKER),
    "stop": Command("stop b1", "stop it cleanly (SIGTERM)", _BROKER),
    "restart": Command(
        "restart b1 b2 times=6",
        "stop and start these brokers one after the other, as often",
        rf"{_BROKER}( {_BROKER})* times=\d+",
    ),
    "freeze": Command("freeze b1", "its process hangs (SIGSTOP)", _BROKER),
    "thaw": Command("thaw b1", "it goes on (SIGCONT)", _BROKER),
    "cut": Command(
        "cut b1 <-> b2", "nothing arrives, one way (->) or both", rf"{_HOST} <?-> {_HOST}"
    ),
    "heal": Command("heal b1 b2", "all links, or those between two", rf"({_HOST} {_HOST})?"),
    "slow": Command("slow b1 200ms", "the delay of its messages", rf"{_HOST} {_TIME}"),
    "cut-store": Command("cut-store b1", "it does not reach the metadata store", _BROKER),
    "heal-store": Command("heal-store b1", "it does again", _BROKER),
    "slow-store": Command(
        "slow-store b1 500ms", "the delay of its writes there", rf"{_BROKER} {_TIME}"
    ),
    "expire": Command("expire b1", "its session with the store expires", _BROKER),
    "until": Command(
        "until b1 hw 1",
        "run until the step after which this is true; also `until b2 end 1`, `until leader b2`, "
        "`until in-sync b1 b2`, `until b1 connects b2`",
        rf"({_BROKER} (hw|end) \d+|leader {_BROKER}|in-sync( {_BROKER})+"
        rf"|{_BROKER} connects {_BROKER})",
    ),
    "wait": Command("wait 5s", "let this much virtual time pass", _TIME),
}


def mistake_in(line: str) -> str | None:
    """What is wrong with a command, and how it is written."""
    name, _, rest = line.partition(" ")
    command = COMMANDS.get(name)
    if command is None:
        if not name.strip("-"):
            return f"`{name}` begins nothing here: what a step changes is below a line `----`"
        near = get_close_matches(name, COMMANDS, 1)
        advice = f"did you mean `{near[0]}`?" if near else "`suwi lab commands` lists them"
        return f"there is no command `{name}`; {advice}"
    try:
        shlex.split(line, comments=True)
    except ValueError:
        return "a quotation mark is not closed"
    rest = re.sub(r"\s+", " ", re.sub(r"\s#.*", "", f" {rest}")).strip()
    if re.fullmatch(command.pattern, rest) is None:
        return f"`{name}` is written like `{command.usage}`: {command.what}"
    return None

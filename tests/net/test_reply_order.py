"""Replies leave in the order of their requests, without a connection."""

from hypothesis import given
from hypothesis import strategies as st

from suwi.net.answers import NO_REPLY, NoReply, Promise, Reply
from suwi.net.reply_order import ReplyOrder, Slot

Body = bytes | None  # None: no reply is wanted


class Requests:
    """Requests that are answered at once or later; what has left, and what was released."""

    def __init__(self) -> None:
        self.order = ReplyOrder()
        self.left: list[bytes] = []
        self.released: list[bytes] = []
        self.cancelled: list[int] = []

    def reply(self, body: Body) -> Reply | NoReply:
        if body is None:
            return NO_REPLY
        return Reply([body], lambda: self.released.append(body))

    def add_waiting(self, number: int) -> Slot:
        promise = Promise(lambda: self.cancelled.append(number))
        return self.order.add_waiting(b"%d" % number, 10, promise)

    def send(self) -> None:
        self.left.extend(
            b"".join([header, *reply.chunks]) for header, reply in self.order.take_ready()
        )


bodies = st.lists(st.one_of(st.none(), st.binary(max_size=20)), max_size=20)


@given(bodies, st.data())
def test_replies_leave_in_request_order_whatever_the_order_of_completion(
    sent: list[Body], data: st.DataObject
) -> None:
    requests = Requests()
    waiting: dict[int, Slot] = {}
    done: set[int] = set()
    expected = [b"%d" % i + body for i, body in enumerate(sent) if body is not None]
    for number, body in enumerate(sent):
        if data.draw(st.booleans(), "later"):
            waiting[number] = requests.add_waiting(number)
        else:
            requests.order.add(b"%d" % number, requests.reply(body))
            done.add(number)
        while waiting and data.draw(st.booleans(), "complete"):
            ready = data.draw(st.sampled_from(sorted(waiting)), "which")
            requests.order.complete(waiting.pop(ready), requests.reply(sent[ready]))
            done.add(ready)
        requests.send()
        first_missing = min(set(range(number + 2)) - done)
        complete = [b"%d" % i + b for i, b in enumerate(sent[:first_missing]) if b is not None]
        assert requests.left == complete, "all that may leave, and no other"
    for number in data.draw(st.permutations(sorted(waiting)), "the rest"):
        requests.order.complete(waiting.pop(number), requests.reply(sent[number]))
    requests.send()
    assert requests.left == expected
    assert not requests.order.slots
    assert (requests.order.bytes_in_flight, requests.order.ready_bytes) == (0, 0)
    assert requests.released == [], "whoever sends a reply releases it"


@given(bodies, st.data())
def test_bytes_in_flight_are_those_of_replies_and_of_requests_that_wait(
    sent: list[Body], data: st.DataObject
) -> None:
    requests = Requests()
    requests.add_waiting(0)
    in_flight_bytes = 10
    ready_bytes = 0
    for number, body in enumerate(sent, 1):
        kind = data.draw(st.sampled_from(["at once", "later", "waiting"]))
        if kind == "at once":
            requests.order.add(b"", requests.reply(body))
        else:
            slot = requests.add_waiting(number)
            if kind == "later":
                requests.order.complete(slot, requests.reply(body))
        if kind == "waiting" or (kind == "later" and body is None):
            in_flight_bytes += 10
        elif body is not None:
            in_flight_bytes += len(body)
            ready_bytes += len(body)
        assert requests.order.bytes_in_flight == in_flight_bytes
        assert requests.order.ready_bytes == ready_bytes


@given(bodies, st.data())
def test_after_close_nothing_leaves_and_every_reply_is_released_or_cancelled(
    sent: list[Body], data: st.DataObject
) -> None:
    requests = Requests()
    requests.add_waiting(0)
    waiting: dict[int, Slot] = {}
    for number, body in enumerate(sent, 1):
        if data.draw(st.booleans(), "later"):
            waiting[number] = requests.add_waiting(number)
        else:
            requests.order.add(b"", requests.reply(body))
    for number in sorted(waiting):
        if data.draw(st.booleans(), "complete"):
            requests.order.complete(waiting.pop(number), requests.reply(sent[number - 1]))
    requests.order.close()
    requests.send()
    assert requests.left == []
    assert requests.cancelled == [0, *sorted(waiting)]
    ready = [body for number, body in enumerate(sent, 1) if number not in waiting]
    assert requests.released == [body for body in ready if body is not None]
    requests.order.close()
    assert not requests.order.is_waiting


def test_no_reply_to_the_only_request_needs_no_slot() -> None:
    order = ReplyOrder()
    order.add(b"", NO_REPLY)
    assert not order.slots

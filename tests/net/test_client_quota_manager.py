"""Quotas at work: a reply at once with its throttle time, then a muted connection (KIP-219)."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from suwi.model.errors import InvalidPartitions, RequestTimedOut, ThrottlingQuotaExceeded
from suwi.net.answers import NO_REPLY, Answer, Exclusive, Later, Reply
from suwi.net.client_quota_manager import ClientQuotaManager, RequestQuota
from suwi.net.connection import ClientBuckets, ClientIdentity, Connection
from suwi.net.dispatch import Dispatcher, Request
from suwi.net.start_gate import StartGate
from suwi.security.client_quotas import (
    CLIENT_ID,
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    IP,
    NO_QUOTAS,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    USER,
)
from suwi.security.principal import Principal
from suwi.sim import Simulation
from suwi.wire.codec import encode_response, read_response
from suwi.wire.headers import read_response_header
from suwi.wire.produce import encode_produce_response, throttle_at
from suwi.wire.versions import ApiKey
from tests.net.support import Wire, connect, settle, until
from tests.net.test_dispatch import frame, heartbeat


def quotas(**values: float) -> ClientQuotaManager:
    manager = ClientQuotaManager()
    manager.apply(NO_QUOTAS.replaced([(((CLIENT_ID, "me"),), values)]))
    return manager


def spending(seconds: float) -> Callable[[Request], Answer]:
    """A handler that keeps the event loop busy."""

    def handle(request: Request) -> Answer:
        end_s = asyncio.get_running_loop().time() + seconds
        while asyncio.get_running_loop().time() < end_s:
            pass
        return Reply([encode_response(request.api_key, request.version, {"error_code": 0})])

    return handle


def produce(request: Request) -> Answer:
    body = encode_produce_response(request.version, [])
    return Reply([body], throttle_at=throttle_at(request.version))


def answers(wire: Wire, api_key: int, version: int) -> list[Any]:
    found, sent = [], bytes(wire.sent)
    while sent:
        size = 4 + int.from_bytes(sent[:4], "big")
        one, sent = sent[4:size], sent[size:]
        _, at = read_response_header(api_key, version, one)
        found.append(read_response(api_key, version, one, at))
    return found


def throttle_ms(answer: Any) -> float:
    return float(answer.throttle_time.total_seconds() * 1000)


def test_what_exceeds_the_quota_is_answered_at_once_and_the_next_request_waits() -> None:
    async def scenario() -> None:
        manager = quotas(**{PRODUCER_BYTE_RATE: 10_000.0})
        connection, wire = connect(Dispatcher({ApiKey.PRODUCE: produce}, None, manager))
        one = frame(ApiKey.PRODUCE, 9, bytes(10_500))
        began_s = asyncio.get_running_loop().time()
        wire.deliver(one + one)
        await settle()
        (first,) = answers(wire, ApiKey.PRODUCE, 9)
        assert 0 < throttle_ms(first) <= 100
        await until(lambda: len(answers(wire, ApiKey.PRODUCE, 9)) == 2)
        assert asyncio.get_running_loop().time() - began_s >= throttle_ms(first) / 1000
        connection.abort()

    Simulation(1).run(scenario())


@pytest.mark.parametrize("rate", [1.0, 1e-310])
def test_no_throttle_time_is_longer_than_a_minute(rate: float) -> None:
    """A rate of 1 is a way to block a client; the time must fit into the response."""

    async def scenario() -> None:
        manager = quotas(**{PRODUCER_BYTE_RATE: rate})
        connection, wire = connect(Dispatcher({ApiKey.PRODUCE: produce}, None, manager))
        wire.deliver(frame(ApiKey.PRODUCE, 9, bytes(100_000)))
        await settle()
        (answer,) = answers(wire, ApiKey.PRODUCE, 9)
        assert throttle_ms(answer) == 60_000
        connection.abort()

    Simulation(1).run(scenario())


def test_requests_before_a_log_in_have_no_quota_and_long_ids_are_not_remembered_whole() -> None:
    manager = quotas(**{REQUEST_PERCENTAGE: 1.0})
    client = ClientIdentity("L")
    assert manager.of(client, "me", ApiKey.HEARTBEAT) is not None
    for api in (ApiKey.API_VERSIONS, ApiKey.SASL_AUTHENTICATE, ApiKey.PEER_CHALLENGE):
        assert manager.of(client, "me", api) is None
    for number in range(3):
        manager.of(client, "x" * 30_000 + str(number), ApiKey.HEARTBEAT)
    assert sum(len(client_id or "") for _, client_id in manager._clients) < 300


def test_the_wait_for_the_brokers_start_is_no_request_time() -> None:
    async def scenario() -> None:
        manager = quotas(**{REQUEST_PERCENTAGE: 1.0})
        gate = StartGate(Dispatcher({ApiKey.PRODUCE: produce}, None, manager))
        connection, wire = connect(gate)
        wire.deliver(frame(ApiKey.PRODUCE, 9, bytes(100)))
        await asyncio.sleep(5)
        gate.open()
        await until(lambda: bool(wire.sent))
        (answer,) = answers(wire, ApiKey.PRODUCE, 9)
        assert throttle_ms(answer) == 0
        connection.abort()

    Simulation(1).run(scenario())


def test_acks_0_mutes_without_a_reply() -> None:
    served: list[int] = []

    def swallow(request: Request) -> Answer:
        served.append(request.correlation_id)
        return NO_REPLY

    async def scenario() -> None:
        manager = quotas(**{PRODUCER_BYTE_RATE: 10_000.0})
        connection, wire = connect(Dispatcher({ApiKey.PRODUCE: swallow}, None, manager))
        wire.deliver(frame(ApiKey.PRODUCE, 9, bytes(11_000)) * 2)
        await settle()
        assert len(served) == 1
        assert not wire.sent
        await until(lambda: len(served) == 2)
        connection.abort()

    Simulation(1).run(scenario())


@pytest.mark.parametrize("kind", ["sync", "coroutine", "later"])
def test_the_time_of_a_handler_counts_however_it_answers(kind: str) -> None:
    busy = spending(0.03)

    async def later(request: Request) -> Reply:
        await asyncio.sleep(0)
        answer = busy(request)
        assert isinstance(answer, Reply)
        return answer

    def handle(request: Request) -> Any:
        if kind == "sync":
            return busy(request)
        return later(request) if kind == "coroutine" else Exclusive(later(request))

    async def scenario() -> None:
        manager = quotas(**{REQUEST_PERCENTAGE: 2.0})
        connection, wire = connect(Dispatcher({ApiKey.HEARTBEAT: handle}, None, manager))
        wire.deliver(heartbeat(4))
        await until(lambda: bool(wire.sent))
        (answer,) = answers(wire, ApiKey.HEARTBEAT, 4)
        assert throttle_ms(answer) > 0
        connection.abort()

    asyncio.run(scenario())


def test_the_time_for_which_a_handler_waits_does_not_count() -> None:
    async def handle(request: Request) -> Reply:
        await asyncio.sleep(0.2)
        return Reply([encode_response(request.api_key, request.version, {"error_code": 0})])

    async def scenario() -> None:
        manager = quotas(**{REQUEST_PERCENTAGE: 10.0})
        connection, wire = connect(Dispatcher({ApiKey.HEARTBEAT: handle}, None, manager))
        wire.deliver(heartbeat(4) * 5)
        await until(lambda: len(answers(wire, ApiKey.HEARTBEAT, 4)) == 5)
        assert sum(map(throttle_ms, answers(wire, ApiKey.HEARTBEAT, 4))) == 0
        connection.abort()

    Simulation(1).run(scenario())


def test_a_handler_that_is_cancelled_while_it_is_timed_hears_of_it() -> None:
    ended: list[str] = []

    async def handle(request: Request) -> Reply:
        try:
            await asyncio.sleep(1000)
        finally:
            ended.append("cancelled")
        return Reply([])

    async def scenario() -> None:
        manager = quotas(**{REQUEST_PERCENTAGE: 1.0})
        connection, wire = connect(Dispatcher({ApiKey.HEARTBEAT: handle}, None, manager))
        wire.deliver(heartbeat(4))
        await settle()
        connection.abort()
        await until(lambda: bool(ended))

    asyncio.run(scenario())


def test_a_delayed_reply_is_counted_when_it_is_ready() -> None:
    waiting: list[asyncio.Future[Any]] = []

    def handle(request: Request) -> Answer:
        waiting.append(asyncio.get_running_loop().create_future())
        return Later(waiting[-1])

    async def scenario() -> None:
        manager = quotas(**{PRODUCER_BYTE_RATE: 10_000.0})
        connection, wire = connect(Dispatcher({ApiKey.PRODUCE: handle}, None, manager))
        one = frame(ApiKey.PRODUCE, 9, bytes(11_000))
        wire.deliver(one + one)
        await settle()
        assert len(waiting) == 2
        body = encode_produce_response(9, [])
        waiting[0].set_result(Reply([body], throttle_at=throttle_at(9)))
        await settle()
        (first,) = answers(wire, ApiKey.PRODUCE, 9)
        assert throttle_ms(first) > 0
        wire.deliver(one)
        await settle()
        assert len(waiting) == 2
        connection.abort()

    Simulation(1).run(scenario())


def test_peers_and_other_clients_have_no_quota() -> None:
    async def scenario() -> None:
        manager = quotas(**{PRODUCER_BYTE_RATE: 1.0})
        connection, wire = connect(Dispatcher({ApiKey.PRODUCE: produce}, None, manager))
        other = frame(ApiKey.PRODUCE, 9, bytes(1000), client_id="other")
        connection.authenticated(connection.client.principal, is_peer=True)
        wire.deliver(frame(ApiKey.PRODUCE, 9, bytes(1000)) + other)
        await settle()
        assert [throttle_ms(each) for each in answers(wire, ApiKey.PRODUCE, 9)] == [0, 0]
        connection.abort()

    asyncio.run(scenario())


def test_a_connection_has_the_quotas_of_now_and_of_its_client_now() -> None:
    found: list[ClientBuckets | None] = []

    def handle(request: Request) -> Answer:
        found.append(request.quotas)
        return produce(request)

    def ask(wire: Wire, client_id: str) -> ClientBuckets | None:
        wire.deliver(frame(ApiKey.PRODUCE, 9, b"", client_id=client_id))
        return found[-1]

    async def scenario() -> None:
        rate = {PRODUCER_BYTE_RATE: 1e6}
        index = NO_QUOTAS.replaced([(((CLIENT_ID, "me"),), rate), (((USER, "alice"),), rate)])
        manager = ClientQuotaManager()
        connection, wire = connect(Dispatcher({ApiKey.PRODUCE: handle}, None, manager))
        assert ask(wire, "me") is None
        manager.apply(index)
        own = ask(wire, "me")
        assert own is not None
        assert ask(wire, "me") is own
        assert ask(wire, "other") is None
        assert ask(wire, "me") is own
        manager.apply(index.replaced([(((CLIENT_ID, "me"),), {**rate, CONSUMER_BYTE_RATE: 1e6})]))
        more = ask(wire, "me")
        assert more is not None
        assert more.fetch is not None
        assert more.produce is own.produce  # What was used is not forgotten.
        connection.authenticated(Principal("User", "alice"))
        of_alice = ask(wire, "me")
        assert of_alice is not None
        assert of_alice.produce is not own.produce
        manager.apply(NO_QUOTAS)
        assert ask(wire, "me") is None
        connection.abort()

    asyncio.run(scenario())


def test_a_connection_looks_for_its_quotas_again_when_many_clients_displace_them() -> None:
    async def check(connection: Connection) -> None:
        manager = ClientQuotaManager()
        manager.apply(NO_QUOTAS.replaced([(((CLIENT_ID, None),), {CONSUMER_BYTE_RATE: 1.0})]))
        held = manager.of_connection(connection, "me")
        for number in range(25_000):
            request_quota(manager, connection, str(number))
        assert connection.quotas[2] != manager.epoch
        assert manager.of_connection(connection, "me") == held

    in_simulation(check)


def test_a_connection_does_not_keep_a_long_client_id() -> None:
    async def check(connection: Connection) -> None:
        manager = quotas(**{REQUEST_PERCENTAGE: 1.0})
        assert manager.of_connection(connection, "me") is not None
        manager.of_connection(connection, "x" * 30_000)
        assert connection.quotas[1] == "me"

    in_simulation(check)


def request_quota(manager: ClientQuotaManager, connection: Connection, client_id: str) -> Any:
    quotas = manager.of(connection.client, client_id, ApiKey.FETCH)
    return None if quotas is None else RequestQuota(quotas, connection, (ApiKey.FETCH, 12))


def in_simulation(check: Callable[[Connection], Any]) -> None:
    """In virtual time, which stands still unless the test sleeps."""

    async def scenario() -> None:
        connection, _ = connect(Dispatcher({}))
        await check(connection)

    Simulation(1).run(scenario())


def test_a_fetch_waits_for_what_the_last_one_exceeded() -> None:
    async def check(connection: Connection) -> None:
        manager = quotas(**{CONSUMER_BYTE_RATE: 1000.0})
        first = request_quota(manager, connection, "me")
        assert not first.throttles_fetch(5000)  # one large batch
        second = request_quota(manager, connection, "me")
        assert second.throttles_fetch(1)
        assert second.throttle_ms == 4000
        await asyncio.sleep(4)
        assert not request_quota(manager, connection, "me").throttles_fetch(1)

    in_simulation(check)


def test_mutations_are_refused_after_a_burst_and_counted_for_old_versions() -> None:
    async def check(connection: Connection) -> None:
        manager = quotas(**{CONTROLLER_MUTATION_RATE: 1.0})
        quota = request_quota(manager, connection, "me")
        with quota.mutating(20, is_strict=True):
            pass
        assert quota.throttle_ms == 0
        with pytest.raises(ThrottlingQuotaExceeded), quota.mutating(1, is_strict=True):
            pass
        assert quota.throttle_ms == 9000
        older = request_quota(manager, connection, "me")
        with older.mutating(1, is_strict=False):
            pass
        assert older.throttle_ms == 10_000

    in_simulation(check)


def test_mutations_count_before_they_are_done_so_that_requests_at_once_do_not_avoid_it() -> None:
    async def check(connection: Connection) -> None:
        manager = quotas(**{CONTROLLER_MUTATION_RATE: 1.0})
        refused = []

        async def create() -> None:
            try:
                with request_quota(manager, connection, "me").mutating(10, is_strict=True):
                    await asyncio.sleep(1)
            except ThrottlingQuotaExceeded:
                refused.append(1)

        await asyncio.gather(*(create() for _ in range(10)))
        assert len(refused) == 8

    in_simulation(check)


@pytest.mark.parametrize(
    ("error", "throttle_ms"),
    [
        (InvalidPartitions("too many"), 3_000),
        (RequestTimedOut("late"), 60_000),
        (asyncio.CancelledError(), 60_000),
    ],
    ids=["nothing done", "perhaps done", "hung up"],
)
def test_mutations_that_fail_do_not_count_unless_they_may_still_be_done(
    error: BaseException, throttle_ms: int
) -> None:
    async def check(connection: Connection) -> None:
        manager = quotas(**{CONTROLLER_MUTATION_RATE: 1.0})
        with request_quota(manager, connection, "me").mutating(5, is_strict=True):
            pass
        quota = request_quota(manager, connection, "me")
        with pytest.raises(type(error)), quota.mutating(2**31, is_strict=True):
            raise error
        older = request_quota(manager, connection, "me")
        for partitions in (-7, 9):
            with older.mutating(partitions, is_strict=False):
                pass
        assert older.throttle_ms == throttle_ms

    in_simulation(check)


def test_what_a_request_uses_counts_also_if_its_client_hangs_up() -> None:
    async def handle(request: Request) -> Reply:
        busy = spending(0.03)(request)
        assert isinstance(busy, Reply)
        await asyncio.Event().wait()
        return busy

    async def scenario() -> None:
        manager = quotas(**{PRODUCER_BYTE_RATE: 100.0, REQUEST_PERCENTAGE: 1.0})
        dispatcher = Dispatcher({ApiKey.PRODUCE: handle, ApiKey.FETCH: handle}, None, manager)
        connection, wire = connect(dispatcher)
        wire.deliver(frame(ApiKey.PRODUCE, 9, bytes(30_000)))
        await settle()
        connection.abort()
        await settle()
        buckets = manager._clients["ANONYMOUS", "me"]
        assert buckets is not None
        assert buckets.produce is not None
        assert buckets.request is not None
        now_s = asyncio.get_running_loop().time()
        assert buckets.produce.wait_s(now_s) > 0
        assert buckets.request.wait_s(now_s) > 0

    asyncio.run(scenario())


def test_clients_of_a_user_share_its_quota_and_a_change_keeps_what_they_used() -> None:
    async def check(connection: Connection) -> None:
        manager, index = ClientQuotaManager(), NO_QUOTAS
        for rate in (1000.0, 500.0):
            index = index.replaced([(((USER, "ANONYMOUS"),), {CONSUMER_BYTE_RATE: rate})])
            manager.apply(index)
            request_quota(manager, connection, "a").throttles_fetch(3000)
            quota = request_quota(manager, connection, "b")
            assert quota.throttles_fetch(1)
        assert quota.throttle_ms == 4000
        manager.apply(NO_QUOTAS)
        assert manager.epoch is None
        assert request_quota(manager, connection, "a") is None

    in_simulation(check)


def test_what_is_remembered_of_client_ids_is_bounded() -> None:
    async def check(connection: Connection) -> None:
        manager = ClientQuotaManager()
        manager.apply(NO_QUOTAS.replaced([(((CLIENT_ID, None),), {CONSUMER_BYTE_RATE: 1.0})]))
        for number in range(25_000):
            request_quota(manager, connection, str(number))
        assert len(manager._buckets) <= 10_001
        assert len(manager._clients) <= 10_000

    in_simulation(check)


@pytest.mark.slow
def test_many_client_ids_do_not_make_a_debt_forgotten() -> None:
    async def check(connection: Connection) -> None:
        index = NO_QUOTAS.replaced(
            [
                (((CLIENT_ID, None),), {CONSUMER_BYTE_RATE: 1.0}),
                (((CLIENT_ID, "me"),), {CONSUMER_BYTE_RATE: 1.0}),
            ]
        )
        manager = ClientQuotaManager()
        manager.apply(index)
        request_quota(manager, connection, "me").throttles_fetch(50)
        for number in range(25_000):
            quota = request_quota(manager, connection, str(number))
            quota.throttles_fetch(50)
            if number % 1000 == 0:
                await asyncio.sleep(1)
        assert len(manager._buckets) <= 10_001
        assert quota.throttle_ms > 0  # Too many have debts: the others share one quota.
        assert request_quota(manager, connection, "me").throttles_fetch(1)
        await asyncio.sleep(100)
        for number in range(25_000):
            assert not request_quota(manager, connection, f"later {number}").throttles_fetch(0)

    in_simulation(check)


def test_a_request_counts_although_its_client_was_forgotten_meanwhile() -> None:
    async def check(connection: Connection) -> None:
        manager = ClientQuotaManager()
        manager.apply(NO_QUOTAS.replaced([(((CLIENT_ID, None),), {CONSUMER_BYTE_RATE: 1.0})]))
        waiting = request_quota(manager, connection, "me")
        for number in range(25_000):
            request_quota(manager, connection, str(number))
        assert not waiting.throttles_fetch(50)
        assert request_quota(manager, connection, "me").throttles_fetch(1)

    in_simulation(check)


def test_an_address_that_connects_too_often_is_refused_for_a_while() -> None:
    async def check(_: Connection) -> None:
        manager = ClientQuotaManager()
        manager.apply(NO_QUOTAS.replaced([(((IP, None),), {CONNECTION_CREATION_RATE: 2.0})]))
        tried = [manager.refuses_connection("10.0.0.1") for _ in range(5)]
        assert tried == [False, False, False, True, True]
        assert not manager.refuses_connection("10.0.0.2")
        await asyncio.sleep(0.5)
        assert not manager.refuses_connection("10.0.0.1")

    in_simulation(check)


def test_what_clients_use_is_told_for_the_quotas_that_apply_now() -> None:
    async def check(connection: Connection) -> None:
        manager = ClientQuotaManager()
        of_user, of_address = ((USER, "ANONYMOUS"),), ((IP, None),)
        quotas = NO_QUOTAS.replaced(
            [
                (of_user, {CONSUMER_BYTE_RATE: 1000.0}),
                (of_address, {CONNECTION_CREATION_RATE: 2.0}),
            ]
        )
        manager.apply(quotas)
        for _ in range(120):
            await asyncio.sleep(0.5)
            request_quota(manager, connection, "a").throttles_fetch(250)
        manager.refuses_connection("10.0.0.1")
        half, address = manager.usages()
        assert (half.entity, half.key, half.limit) == (of_user, CONSUMER_BYTE_RATE, 1000)
        assert 450 < half.used < 550
        assert half.throttle_s == 0
        assert (address.entity, address.limit) == (((IP, "10.0.0.1"),), 2)
        request_quota(manager, connection, "a").throttles_fetch(4000)
        throttled, _ = manager.usages()
        assert throttled.throttle_s > 3
        own = {CONSUMER_BYTE_RATE: 10.0}
        manager.apply(quotas.replaced([(((CLIENT_ID, "a"), (USER, "ANONYMOUS")), own)]))
        request_quota(manager, connection, "a").throttles_fetch(0)
        assert [usage.limit for usage in manager.usages()] == [1000, 2, 10]
        manager.apply(NO_QUOTAS)
        assert list(manager.usages()) == []

    in_simulation(check)


def test_a_quota_of_a_client_id_is_told_unless_one_of_users_comes_before_it() -> None:
    async def check(connection: Connection) -> None:
        manager = quotas(**{CONSUMER_BYTE_RATE: 1000.0})
        request_quota(manager, connection, "me").throttles_fetch(1)
        (usage,) = manager.usages()
        assert usage.entity == ((CLIENT_ID, "me"),)
        rates = [
            ((entity,), {CONSUMER_BYTE_RATE: 5.0}) for entity in ((CLIENT_ID, "me"), (USER, None))
        ]
        manager.apply(NO_QUOTAS.replaced(rates))
        assert list(manager.usages()) == []

    in_simulation(check)

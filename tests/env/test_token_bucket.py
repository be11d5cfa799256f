"""The token bucket of quotas."""

from suwi.env.token_bucket import TokenBucket


def test_a_burst_may_be_used_at_once_and_the_next_waits_for_what_exceeds_it() -> None:
    bucket = TokenBucket(rate=100, burst_s=2)
    assert bucket.wait_s(5) == 0
    bucket.record(150, 5)
    assert bucket.wait_s(5) == 0
    bucket.record(150, 5)
    assert bucket.wait_s(5) == 1
    assert bucket.wait_s(5.5) == 0.5
    assert bucket.wait_s(6) == 0


def test_no_more_than_a_burst_is_saved() -> None:
    bucket = TokenBucket(rate=100, burst_s=2)
    bucket.record(0, 0)
    bucket.record(300, 1000)
    assert bucket.wait_s(1000) == 1


def test_at_most_what_a_tenth_of_a_second_adds_is_used_beyond_a_burst() -> None:
    bucket = TokenBucket(rate=100, burst_s=1)
    bucket.record(0, 0)
    bucket.record(100, 0.0625)
    bucket.record(20, 0.0625)
    assert bucket.wait_s(0.0625) == 0.1375  # 120 of 100 and of the 6.25 since the first use


def test_over_a_minute_the_rate_holds() -> None:
    bucket, now_s, used = TokenBucket(rate=1000, burst_s=1), 0.0, 0
    while now_s < 60:
        bucket.record(700, now_s)
        used += 700
        now_s += bucket.wait_s(now_s)
    assert 60_000 <= used <= 60_000 * 1.05


def test_the_rate_can_be_changed() -> None:
    bucket = TokenBucket(rate=100, burst_s=1)
    bucket.record(300, 0)
    assert bucket.wait_s(0) == 2
    bucket.rate = 200
    assert bucket.wait_s(0) == 1


def test_what_is_used_steadily_is_what_was_used_of_late_and_is_forgotten_slowly() -> None:
    bucket = TokenBucket(rate=100, burst_s=1)
    assert bucket.used(7) == 0
    for tenth in range(600):
        bucket.record(5, tenth / 10)
    assert 48 < bucket.used(60) < 52
    assert 15 < bucket.used(70) < 20
    assert bucket.used(1000) < 0.001


def test_a_debt_is_not_larger_than_it_may_be() -> None:
    bucket = TokenBucket(rate=1, burst_s=1, debt_s_max=60)
    bucket.record(10**12, 0)
    assert bucket.wait_s(0) == 60
    assert bucket.wait_s(60) == 0

from __future__ import annotations

from svcnode.sharing.etcd import Backoff


def test_the_longest_delay_doubles_up_to_its_limit_until_an_attempt_succeeds() -> None:
    backoff = Backoff(0.5, 3.0, uniform=lambda _, longest_s: longest_s)
    assert [backoff.next_delay_s() for _ in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]
    backoff.reset()
    assert backoff.next_delay_s() == 0.5


def test_a_delay_may_be_any_time_up_to_the_longest_one() -> None:
    delays_s = {Backoff(0.5, 3.0).next_delay_s() for _ in range(10)}
    assert len(delays_s) > 1
    assert all(0 <= delay_s <= 0.5 for delay_s in delays_s)

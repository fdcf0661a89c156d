from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from svcnode.core.errors import RegistryUnreachableError
from svcnode.sharing.etcd import Backoff, EtcdClient

if TYPE_CHECKING:
    from svcnode.net.connect import TcpEndpoint


def test_the_longest_delay_doubles_up_to_its_limit_until_an_attempt_succeeds() -> None:
    backoff = Backoff(0.5, 3.0, uniform=lambda _, longest_s: longest_s)
    assert [backoff.next_delay_s() for _ in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]
    backoff.reset()
    assert backoff.next_delay_s() == 0.5


def test_a_call_tries_each_endpoint_once_while_other_calls_find_one_that_responds() -> None:
    client = EtcdClient([("a", 1), ("b", 2), ("c", 3)])
    client._current = 1
    tried: list[TcpEndpoint] = []

    async def respond(endpoint: TcpEndpoint) -> None:
        if endpoint != client.endpoints[0]:
            raise RegistryUnreachableError(str(endpoint))

    async def fail(endpoint: TcpEndpoint) -> None:
        tried.append(endpoint)
        await client._try_endpoints(respond)
        raise RegistryUnreachableError(str(endpoint))

    with pytest.raises(RegistryUnreachableError):
        asyncio.run(client._try_endpoints(fail))
    assert sorted(tried) == sorted(client.endpoints)

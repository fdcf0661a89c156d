"""`redis+sentinel://user:password@host:port/master/db`: the master that a Sentinel of Redis or Valkey names.

The probe asks the Sentinel for the address of the master and checks that server as `redis://` does, with the role
"primary". User name, password and database are those of the master.

ready      the master is ready
not ready  the master is not ready; the Sentinel names a replica, as it can during a failover
failed     the Sentinel or the master does not respond or refuses the login; the Sentinel does not know the master; any
           other error
unknown    no file descriptors or ports left on this machine; the resolver does not answer
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, ClassVar
from urllib.parse import unquote

from redis.exceptions import AuthenticationError, NoPermissionError, ResponseError

from svcnode.core.codes import ReasonCode
from svcnode.core.errors import OptionError, ProbeError
from svcnode.core.option_types import PublicText, one_of
from svcnode.core.redaction import register_secret
from svcnode.core.url import Url, UrlForm, is_valid_hostname
from svcnode.net.connect import TcpEndpoint
from svcnode.net.trace import attach_detail
from svcnode.probes.base import CheckError
from svcnode.probes.redis import RedisConnection, RedisProbe, call, server_error

if TYPE_CHECKING:
    import asyncio

    from svcnode.core.model import Verdict


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RedisSentinelProbe(RedisProbe):
    """The connection of this probe is that to the Sentinel."""

    role: Annotated[str, one_of("primary")] = "primary"
    max_lag: ClassVar = None  # type: ignore[misc]  # no option: a master has no lag
    tls: bool = False  # of both servers
    sentinel_username: PublicText = ""
    sentinel_password: str = ""

    default_port: ClassVar = 26379
    tls_enabled_by: ClassVar[str] = "tls = true"
    url_form: ClassVar = UrlForm(path="/[^/?#]+(/[0-9]*)?", query="")

    def __post_init__(self) -> None:
        if not self.master_name or "\0" in self.master_name:
            raise ProbeError("the URL has no name of a master; write redis+sentinel://host:port/mymaster")
        if self.sentinel_username and not self.sentinel_password:
            raise OptionError("sentinel_password", "is missing; sentinel_username needs it")
        register_secret(self.sentinel_password)
        RedisProbe.__post_init__(self)

    @property
    def uses_tls(self) -> bool:
        return self.tls

    @property
    def master_name(self) -> str:
        return unquote(self.url.path.removeprefix("/").partition("/")[0])

    @property
    def database_in_url(self) -> str:
        return self.url.path.removeprefix("/").partition("/")[2]

    @property
    def database_follows(self) -> str:
        return "the name of the master: redis+sentinel://host:port/mymaster/"

    async def open(self) -> RedisConnection:
        return await self.log_in(self.sentinel_username, self.sentinel_password, 0)

    def certificate_verdict(self, _transport: asyncio.BaseTransport) -> None:
        """Of the Sentinel; the probe of the master checks that of the master."""

    async def check_connection(self, connection: RedisConnection) -> Verdict:
        host, port = await self._find_master(connection)
        with attach_detail(lambda: f"the master, {TcpEndpoint.of(host, port)}"):
            return await self._probe_of_master(host, port).check()

    async def _find_master(self, connection: RedisConnection) -> tuple[str, int]:
        try:
            address = await call(connection, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.master_name)
        except AuthenticationError as exc:
            raise CheckError("the Sentinel requires a login; set sentinel_password", ReasonCode.AUTH_REQUIRED) from exc
        except NoPermissionError as exc:
            raise CheckError(
                "no permission to ask the Sentinel; grant +sentinel|get-master-addr-by-name",
                ReasonCode.PERMISSION_DENIED,
            ) from exc
        except ResponseError as exc:
            error = server_error(exc)
            if error.code is ReasonCode.NOT_SUPPORTED:
                error = CheckError(
                    "this is not a Sentinel; to check a server, write redis://host:port", ReasonCode.PROTOCOL_ERROR
                )
            raise error from exc
        match address:
            case None:
                raise CheckError(f'the Sentinel knows no master "{self.master_name}"', ReasonCode.NOT_FOUND)
            case [bytes(host), bytes(port)] if is_valid_hostname(host.decode()) and 0 < int(port) < 65536:
                return host.decode(), int(port)
            case _:
                raise CheckError("the Sentinel did not return an address", ReasonCode.UNEXPECTED_RESPONSE)

    def _probe_of_master(self, host: str, port: int) -> RedisProbe:
        options = {each.name: getattr(self, each.name) for each in fields(RedisProbe) if each.init}
        username, password = self.credentials()
        options |= {
            "url": Url(scheme="rediss" if self.tls else "redis", host=host, port=port),
            "username": username,
            "password": password,
            "db": self.database,
            "reuse": False,
        }
        return RedisProbe(**options)

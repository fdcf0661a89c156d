"""The login of a client of etcd: its token, and the user name and password to get one.

A password that comes from a file is read again when etcd has refused it, so a new one needs neither a restart nor a
reload. One from the environment cannot change while the process runs.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from svcnode.core.address import RegistryAddress, parse_registry_url
from svcnode.core.errors import InvalidValueError, RegistryLoginError
from svcnode.core.redaction import RotatingSecret, register_secret
from svcnode.core.text import error_text
from svcnode.net.etcd_json import LoginDisabledError
from svcnode.net.files import READ_TIMEOUT_S
from svcnode.net.threads import DaemonCall
from svcnode.probes.interpolate import interpolate, interpolate_url

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    TokenRequest = Callable[[str, str], Awaitable[str]]  # of a user name and a password


class Login:
    """For one event loop."""

    def __init__(self, registry: RegistryAddress) -> None:
        self.token: str | None = None
        self._secret_token = RotatingSecret()
        self._renewing = asyncio.Lock()
        self._reader = DaemonCall("password of the registry")
        self._registry = registry
        self.set(registry)

    @property
    def username(self) -> str:
        """Empty without a login."""
        return self._registry.username

    def set(self, registry: RegistryAddress) -> None:
        """The token stays valid until etcd refuses it: a password may be set before or after it is changed in etcd."""
        register_secret(registry.password)
        if registry.username != self._registry.username:
            self.token = None
        self._registry = registry

    def drop(self, used: str | None) -> None:
        """Log in before the next call, unless another call has done so since this token was used."""
        if self.token == used:
            self.token = None

    async def renew(self, endpoint: object, used: str | None, request: TokenRequest) -> None:
        """Replace the token that was used. Calls at the same time share one login, which is much work for etcd."""
        async with self._renewing:
            if self.token not in (used, None):
                return  # another call has logged in
            self.token = None
            try:
                self.token = await self._request_token(endpoint, request)
            except RegistryLoginError as exc:
                if not await self._read_again(exc):
                    raise
                self.token = await self._request_token(endpoint, request) if self.username else None

    async def _request_token(self, endpoint: object, request: TokenRequest) -> str:
        if not self.username:
            raise RegistryLoginError(f"{endpoint}: etcd requires a user name and a password")
        try:
            token = await request(self.username, self._registry.password)
        except LoginDisabledError as exc:
            raise RegistryLoginError(f"{endpoint}: {_disabled_text(self.username)}") from exc
        self._secret_token.set(token)
        return token

    async def _read_again(self, refusal: RegistryLoginError) -> bool:
        """Whether the file has another login than etcd has refused."""
        if not (self._registry.url_file or self._registry.password_file):
            return False
        try:
            async with asyncio.timeout(READ_TIMEOUT_S):
                found = await self._reader.call_in_turn(partial(_read_login, self._registry))
        except (InvalidValueError, OSError) as exc:
            raise RegistryLoginError(f"{refusal}; the password cannot be read again: {error_text(exc)}") from exc
        is_new = found != self._registry
        self.set(found)
        return is_new


def _disabled_text(username: str) -> str:
    return (
        f'the registry URL has the user "{username}", but authentication is off in etcd, so anyone may write; remove '
        "user and password from the registry URL, or turn authentication on: etcdctl auth enable"
    )


def _read_login(registry: RegistryAddress) -> RegistryAddress:
    """The user name and the password as their files have them now. Blocks."""
    if registry.url_file:
        found = parse_registry_url(interpolate_url(_file(registry.url_file), {}))
        registry = registry._replace(username=found.username, password=found.password)
    if registry.password_file:
        registry = registry._replace(password=interpolate(_file(registry.password_file), {}))
    return registry


def _file(path: str) -> dict[str, str]:
    return {"file": path.replace("${", "$${")}

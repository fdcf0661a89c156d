from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from svcnode.core.address import RegistryAddress
from svcnode.core.errors import RegistryLoginError
from svcnode.net.etcd_json import LoginDisabledError
from svcnode.sharing.login import Login

if TYPE_CHECKING:
    from pathlib import Path

REGISTRY = RegistryAddress((("10.0.0.1", 2379),), username="me", password="first-secret")


class Etcd:
    """Refuses all passwords but one."""

    def __init__(self, password: str = "first-secret", *, has_authentication: bool = True) -> None:
        self.password, self.has_authentication = password, has_authentication
        self.asked: list[tuple[str, str]] = []

    async def token(self, name: str, password: str) -> str:
        self.asked.append((name, password))
        if not self.has_authentication:
            raise LoginDisabledError("etcdserver: authentication is not enabled")
        if password != self.password:
            raise RegistryLoginError("etcdserver: authentication failed")
        return f"token of {password}"


def renew(login: Login, etcd: Etcd, used: str | None = None) -> None:
    asyncio.run(login.renew("10.0.0.1:2379", used, etcd.token))


def test_a_refused_password_that_is_in_no_file_is_tried_once() -> None:
    login, etcd = Login(REGISTRY), Etcd("second-secret")
    with pytest.raises(RegistryLoginError):
        renew(login, etcd)
    assert etcd.asked == [("me", "first-secret")]
    assert login.token is None


def test_a_new_password_is_used_at_the_next_login_and_the_token_stays_until_then() -> None:
    login, etcd = Login(REGISTRY), Etcd()
    renew(login, etcd)
    login.set(REGISTRY._replace(password="second-secret"))
    assert login.token == "token of first-secret"
    etcd.password = "second-secret"
    renew(login, etcd, login.token)
    assert login.token == "token of second-secret"
    login.set(REGISTRY._replace(username="other"))
    assert login.token is None


def test_the_file_is_read_only_after_a_refusal(tmp_path: Path) -> None:
    file = tmp_path / "${NAME}"
    file.write_text("second-secret\n")
    login, etcd = Login(REGISTRY._replace(password_file=str(file))), Etcd()
    renew(login, etcd)
    assert etcd.asked == [("me", "first-secret")]
    etcd.password = "second-secret"
    renew(login, etcd, login.token)
    assert etcd.asked[1:] == [("me", "first-secret"), ("me", "second-secret")]


def test_a_user_where_authentication_is_off_is_an_error_that_ends_when_the_file_has_none(tmp_path: Path) -> None:
    file = tmp_path / "url"
    file.write_text("etcd://me:first-secret@10.0.0.1")
    login, etcd = Login(REGISTRY._replace(url_file=str(file))), Etcd(has_authentication=False)
    with pytest.raises(RegistryLoginError) as error:
        renew(login, etcd)
    assert error.type is RegistryLoginError
    assert ("me" in str(error.value), "first-secret" in str(error.value)) == (True, False)
    file.write_text("etcd://10.0.0.1")
    renew(login, etcd)
    assert (login.username, login.token) == ("", None)


def test_a_token_is_dropped_by_the_call_that_has_used_it_and_not_by_one_of_before() -> None:
    login, etcd = Login(REGISTRY), Etcd()
    renew(login, etcd)
    login.drop("token of before")
    assert login.token == "token of first-secret"
    login.drop(login.token)
    assert login.token is None


def test_without_a_user_there_is_no_login() -> None:
    etcd = Etcd()
    with pytest.raises(RegistryLoginError):
        renew(Login(RegistryAddress(REGISTRY.endpoints)), etcd)
    assert etcd.asked == []

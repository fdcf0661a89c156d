"""Secrets are replaced in every form that they can have."""

from __future__ import annotations

import json
import re
from html import escape
from typing import TYPE_CHECKING
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from svcnode.core import redaction
from svcnode.core.redaction import (
    MASK,
    MIN_SECRET_CHARS,
    RotatingSecret,
    SecretScope,
    redacted,
    register_likely_keys,
    register_secret,
)

if TYPE_CHECKING:
    from uuid import UUID

ODD = "p/w \"d\\é\n🙂<'&"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("hunter2", "***"),
        ("wrong: hunter2!", "wrong: ***!"),
        ("hunter2 hunter2hunter2", "*** ******"),
        ("Hunter2", "Hunter2"),
        ("", ""),
    ],
)
def test_a_secret_is_hidden_at_every_position(text: str, shown: str) -> None:
    register_secret("hunter2")
    assert redacted(text) == shown


@pytest.mark.parametrize(
    "form",
    [
        ODD,
        quote(ODD, safe=""),
        quote_plus(ODD),
        json.dumps(ODD)[1:-1],
        json.dumps(ODD, ensure_ascii=False)[1:-1].replace("<", "\\u003c").replace("&", "\\u0026"),
        json.dumps(ODD)[1:-1].replace("/", "\\/"),
        json.dumps(json.dumps(ODD))[3:-3],
        json.dumps(json.dumps(ODD)[1:-1].replace("/", "\\/"))[1:-1],
        escape(ODD),
        escape(ODD).replace("&#x27;", "&#39;").replace("&quot;", "&#34;"),
        re.sub("%[0-9A-F]{2}", lambda code: code[0].lower(), quote(ODD, safe="")),
        repr(ODD)[1:-1],
        repr(ODD).replace("\\'", "'")[1:-1],
        ascii(ODD)[1:-1],
        repr(ODD.encode())[2:-1],
    ],
)
def test_a_secret_is_hidden_in_every_encoding(form: str) -> None:
    register_secret(ODD)
    assert redacted(f"<{form}>") == "<***>"


def test_each_line_of_a_secret_is_hidden() -> None:
    register_secret("first line\r\n  second line  \n}")
    assert redacted("error: first line") == "error: ***"
    assert redacted("error: second line}") == "error: ***}"


@pytest.mark.parametrize("short", ["", "a", "abc"])
def test_a_secret_that_is_too_short_is_not_hidden(short: str) -> None:
    register_secret(short)
    assert redacted("abc a") == "abc a"
    assert len(short) < MIN_SECRET_CHARS
    register_secret("pass\udcffword")
    assert redacted("pass\udcffword") == MASK, "surrogates count as characters"


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize(
    ("secrets", "text", "shown"),
    [
        (["abcd", "abcdefgh"], "abcdefgh", "***"),
        (["abcd", "abcdefgh"], "abcdefg", "***efg"),
        (["efgh", "abcdefgh"], "abcdefgh", "***"),
        (["abcdef", "defghi"], "<abcdefghi>", "<***>"),
        (["abcdefghi", "cdef"], "<abcdefghi>", "<***>"),
        (["abcd", "efgh"], "abcdefgh", "******"),
        (["abab"], "ababab", "***"),
    ],
)
def test_overlapping_secrets_are_hidden_completely(order: int, secrets: list[str], text: str, shown: str) -> None:
    for secret in secrets[::order]:
        register_secret(secret)
    assert redacted(text) == shown


@given(st.lists(st.text("ab1", min_size=MIN_SECRET_CHARS, max_size=8), max_size=4), st.text("ab1c", max_size=40))
@example(["aaaa", "aaab"], "aaaab")
def test_no_secret_remains_and_no_other_text_is_lost(secrets: list[str], text: str) -> None:
    for secret in secrets:
        register_secret(secret)
    shown = redacted(text)
    assert shown.count("c") == text.count("c")  # no secret contains a c
    for part in shown.split(MASK):
        assert part in text


@pytest.mark.parametrize(
    "key",
    [
        "9aa3d95b3bc440fa88ea12eaa4456161",
        "6f1c3a52-07de-4b0a-9c1e-2ab4d1f0c377",
        "00000000-0000-4000-8000-00000000000a",  # a UUID whose parts look like names
        "Xk2-9sDfaZ_q81LpW0vTn3",
        "sk_live_4eC39HqLyjWDarjtT1zdp7dc",
    ],
)
def test_a_likely_key_is_hidden(key: str) -> None:
    register_likely_keys(f"/v3/{key}/mainnet")
    assert redacted(f"/v3/{key}/mainnet: {key}") == "/v3/***/mainnet: ***"


@pytest.mark.parametrize(
    "name",
    [
        "checkofthedatabaseofthenode2",
        "backup-2026-11-15-every-24h",
        "eth2-mainnet-archive-p2p-node",
        "a-name-without-any-number",
        "12345678901234567890",
        "9aa3d95b3bc440fa88e",  # too short
    ],
)
def test_a_name_made_of_words_and_numbers_is_not_hidden(name: str) -> None:
    register_likely_keys(f"/{name}/health")
    assert redacted(name) == name


@settings(max_examples=30)
@given(st.uuids())
def test_every_uuid_with_letters_and_digits_is_hidden(uuid: UUID) -> None:
    text = str(uuid)
    assume(re.search("[a-f]", text) and re.search("[0-9]", text))
    register_likely_keys(text)
    assert redacted(text) == MASK


def test_the_number_of_secrets_does_not_change_the_number_of_comparisons() -> None:
    for number in range(300):
        register_secret(f"secret/{number:06}")
    assert redacted("401: secret/000221, secret%2F000007") == "401: ***, ***"
    assert max(len(lengths) for lengths in redaction._lengths_by_prefix.values()) <= 6


def test_a_secret_is_forgotten_with_the_last_scope_that_holds_it() -> None:
    first, second = SecretScope(), SecretScope()
    with first:
        register_secret("hunter2")
        register_secret("hunter2")
        register_secret("hunter2/3")
    with second:
        register_secret("hunter2")
    first.release()
    assert redacted("hunter2, hunter2/3, hunter2%2F3") == "***, ***/3, ***%2F3"
    second.release()
    second.release()
    assert redacted("hunter2") == "hunter2"
    assert (redaction._secrets, redaction._lengths_by_prefix) == ({}, {})


def test_a_scope_finds_its_secrets_in_a_text_as_words_and_in_any_form() -> None:
    with SecretScope() as scope:
        register_secret("hunter2")
        register_secret("p/w d")
    register_secret("elsewhere")
    assert scope.find_in("a p%2Fw%20d, hunter2") == 2
    assert scope.find_in("a p%2Fw%20d, hunter2", besides={"p/w d"}) == 13
    assert scope.find_in("hunter22 hunter2") == 9
    assert scope.find_in("elsewhere hunter22 Xhunter2") is None
    scope.release()


def test_a_secret_registered_before_its_scope_is_never_forgotten_and_after_it_gets_no_further_holder() -> None:
    register_secret("hunter2")
    with SecretScope() as scope:
        register_secret("hunter2")
        register_secret("swordfish")
    register_secret("swordfish")
    scope.release()
    assert redacted("hunter2 swordfish") == f"{MASK} swordfish"


def test_the_newest_values_of_a_rotating_secret_are_hidden() -> None:
    token = RotatingSecret(kept=2)
    for value in ("token-1", "token-2", "token-1", "token-3"):
        token.set(value)
    assert redacted("token-1 token-2 token-3") == "*** token-2 ***"
    del token
    assert redacted("token-1 token-2 token-3") == "token-1 token-2 token-3"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("kaboom http://u:boomsecret@h/", "kaboom http://u:***@h/"),
        ("redis://:pw@h:6379/0", "redis://:***@h:6379/0"),
        ("amqp://u:a@b:c@h/, amqp://u:d@h/", "amqp://u:***@h/, amqp://u:***@h/"),
        ("jdbc:postgresql+x://me@corp:pw@[::1]:5432/db?a=b@c", "jdbc:postgresql+x://me@corp:***@[::1]:5432/db?a=b@c"),
        ('{"url":"http://u:p"w@h"}', '{"url":"http://u:***@h"}'),
        ("http://u:***@h/", "http://u:***@h/"),
    ],
)
def test_the_password_of_any_url_is_hidden(text: str, shown: str) -> None:
    assert redacted(text) == shown


@pytest.mark.parametrize(
    "text", ["http://h:80/a@b", "http://u@h:80/", "http://[::1]:80/?x@y", "http://h:80 me@example", "u:pw@h"]
)
def test_a_url_without_a_password_is_unchanged(text: str) -> None:
    assert redacted(text) == text


def test_the_search_for_passwords_takes_linear_time() -> None:
    text = "@" + "://u:" * 200_000 + ":" * 1_000_000
    assert redacted(text) == text  # quadratic time would be hours, more than a test may take

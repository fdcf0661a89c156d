"""The raw path below a mount point, with and without a raw path from the gateway."""

from __future__ import annotations

from urllib.parse import quote, unquote

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.support.nodes import make_node

from svcnode.api.raw_path import path_below
from svcnode.api.spec import Request, respond
from svcnode.core.model import DOT_SEGMENTS

printable = st.characters(exclude_categories=["Cc", "Cs"])
ids = st.text(printable, min_size=1, max_size=64).filter(lambda text: text not in DOT_SEGMENTS)
mounts = st.sampled_from(["", "/", "/apps", "/apps/", "/apps/node-7"])


@pytest.mark.parametrize(
    ("mount", "path", "raw_path", "below"),
    [
        ("", "/svc/node", b"/svc/node", b"/svc/node"),
        ("", "/svc/node", None, b"/svc/node"),
        ("/apps", "/apps/svc/node", b"/apps/svc/node", b"/svc/node"),
        ("/apps", "/apps/svc/node", None, b"/svc/node"),
        ("/apps/", "/apps/svc/node", None, b"/svc/node"),
        ("/apps", "/svc/node", b"/svc/node", b"/svc/node"),
        ("/apps", "/svc/node", None, b"/svc/node"),
        ("/apps", "/appsvc/node", None, b"/appsvc/node"),
        ("/a/b", "/a/b/svc/node", b"/a/b/svc/node", b"/svc/node"),
        ("", "*", b"*", b"*"),
        ("/apps", "/apps/svc/a/b", b"/apps/svc/a%2Fb", b"/svc/a%2Fb"),
        # Litestar: the mount is removed from the path only, and a slash is added.
        ("", "svc/node/", b"/svc/node", b"/svc/node"),
        ("", "/svc/node/", b"/status/svc/node", b"/svc/node"),
        ("", "/svc/node/", b"/status/svc/node/", b"/svc/node/"),
        ("", "/svc/node/a/b/health/", b"/status/svc/node/a%2Fb/health", b"/svc/node/a%2Fb/health"),
        # cheroot: an encoded slash stays encoded in the path.
        ("", "/svc/node/a%2Fb c/health", b"/svc/node/a%2fb%20c/health", b"/svc/node/a%2fb%20c/health"),
        ("", "/svc/node", b"/other/path", b"/svc/node"),
    ],
)
def test_only_the_mount_is_removed(mount: str, path: str, raw_path: bytes | None, below: bytes) -> None:
    assert path_below(mount, path, raw_path) == below


def is_found(service_id: str, mount: str, *, has_raw_path: bool, prefix: str = "/svc") -> bool:
    node = make_node()
    node.register(service_id).up()
    raw_path = f"{mount.rstrip('/')}{prefix}/node/services/{quote(service_id, safe='')}/health".encode()
    path = unquote(raw_path.decode())
    below = path_below(mount, path, raw_path if has_raw_path else None, (prefix,))
    return respond(node, Request("GET", below), (prefix,)).code == 200


@settings(max_examples=60)
@given(ids, mounts, st.booleans(), st.sampled_from(["/svc", "/a/b", ""]))
@example("a/b", "/apps", False, "/svc")
@example("/health", "", False, "/svc")
@example("x/health", "", False, "/svc")
@example("%2F", "/apps", True, "/svc")
@example("%2F", "/apps", False, "/svc")
def test_any_id_is_found_below_any_mount(service_id: str, mount: str, has_raw_path: bool, prefix: str) -> None:
    assert is_found(service_id, mount, has_raw_path=has_raw_path, prefix=prefix)


segments = st.lists(
    st.sampled_from(["svc", "node", "services", "health", "db", "a b", "é", "%", "..", ""]), max_size=8
).map("/".join)


@settings(max_examples=60)
@given(
    mounts,
    st.text(st.characters(exclude_categories=["Cs"]), max_size=30) | segments,
    st.none() | st.binary(max_size=30),
)
def test_any_path_gets_a_response(mount: str, path: str, raw_path: bytes | None) -> None:
    response = respond(make_node(), Request("GET", path_below(mount, path, raw_path)))
    assert response.code in (200, 404)

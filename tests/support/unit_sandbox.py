"""Runs a command with the restrictions of a systemd unit that need no systemd: a stand-in for its sandbox.

    python -m tests.support.unit_sandbox svcnode.service command …

As root. It applies what can make a probe fail: system calls, address families, writable and executable memory,
namespaces, capabilities, read-only file systems and /proc. It does not hide folders and does not change the user, since
the tests may be in the home of root; root without capabilities has no privileges. It has neither private devices nor
private users, which concern no kind of probe.
"""

from __future__ import annotations

import ctypes
import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

READ_ONLY_PATHS = {"no": (), "yes": ("/usr", "/boot"), "full": ("/usr", "/boot", "/etc"), "strict": ("/",)}
FAMILIES = {"AF_UNIX": 1, "AF_INET": 2, "AF_INET6": 10}
MAX_FAMILY = 64
_PROT_WRITE, _PROT_EXEC = 2, 4
_CLONE_NAMESPACES = (0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000)
_ALLOW = 0x7FFF0000


def parse_unit(text: str) -> dict[str, list[str]]:
    """The values of each key of [Service], in their order."""
    keys: dict[str, list[str]] = {}
    for line in text.partition("[Service]")[2].partition("\n[")[0].splitlines():
        key, equals, value = line.partition("=")
        if equals and not key.startswith("#"):
            keys.setdefault(key, []).append(value.strip())
    return keys


def main(unit_file: str, *command: str) -> None:
    unit = {key: " ".join(values) for key, values in parse_unit(Path(unit_file).read_text()).items()}
    _enter_mount_namespace(unit)
    syscalls = _allowed_syscalls(parse_unit(Path(unit_file).read_text())["SystemCallFilter"])
    _drop_privileges(unit)
    if unit.get("MemoryDenyWriteExecute") == "yes":
        _deny_writable_code()
    if unit.get("RestrictNamespaces") == "yes":
        _deny_namespaces()
    _restrict_families(unit["RestrictAddressFamilies"].split())
    _allow_only(syscalls)
    os.execv(command[0], command)


# ---- file systems and privileges


def _enter_mount_namespace(unit: dict[str, str]) -> None:
    _check(ctypes.CDLL(None, use_errno=True).unshare(0x00020000))
    _run("mount", "--make-rslave", "/")
    for path in READ_ONLY_PATHS[unit.get("ProtectSystem", "no")]:
        if Path(path).exists():
            _run("mount", "--rbind", path, path)
            _run("mount", "-o", "remount,bind,ro", path)
    hidden = {"invisible": "hidepid=invisible"}.get(unit.get("ProtectProc", ""))
    subset = {"pid": "subset=pid"}.get(unit.get("ProcSubset", ""))
    if options := ",".join(filter(None, (hidden, subset))):
        _run("mount", "-t", "proc", "-o", options, "proc", "/proc")


def _drop_privileges(unit: dict[str, str]) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if unit["CapabilityBoundingSet"] == "":
        for capability in range(64):
            libc.prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP; there are fewer than 64
    os.umask(int(unit["UMask"], 8))
    if unit["NoNewPrivileges"] == "yes":
        _check(libc.prctl(38, 1, 0, 0, 0))


def _run(*command: str) -> None:
    subprocess.run(command, check=True)


def _check(result: int) -> None:
    if result:
        raise OSError(ctypes.get_errno() or -result, "sandbox")


# ---- seccomp


class _Comparison(ctypes.Structure):
    _fields_ = (("arg", ctypes.c_uint), ("op", ctypes.c_int), ("a", ctypes.c_uint64), ("b", ctypes.c_uint64))


_NOT_EQUAL, _EQUAL, _GREATER, _MASKED_EQUAL = 1, 4, 6, 7


class Rule(NamedTuple):
    """Without a comparison, it is for all calls."""

    syscall: str
    comparison: tuple[int, int, int, int] | None = None
    error: int = errno.EPERM


def _load_filter(rules: list[Rule], *, otherwise: int = _ALLOW, action: int | None = None) -> None:
    """The action of a rule is its error, if no other is given."""
    seccomp = ctypes.CDLL("libseccomp.so.2")
    seccomp.seccomp_init.restype = ctypes.c_void_p
    context = ctypes.c_void_p(seccomp.seccomp_init(ctypes.c_uint32(otherwise)))
    for rule in rules:
        number = seccomp.seccomp_syscall_resolve_name(rule.syscall.encode())
        comparisons = (_Comparison * 1)(*([_Comparison(*rule.comparison)] if rule.comparison else []))
        of_rule = ctypes.c_uint32(_error(rule.error) if action is None else action)
        if number >= 0:  # other architectures have other calls
            _check(
                seccomp.seccomp_rule_add_array(
                    context, of_rule, number, ctypes.c_uint(1 if rule.comparison else 0), comparisons
                )
            )
    _check(seccomp.seccomp_load(context))


def _error(number: int) -> int:
    return 0x00050000 | number


def _deny_writable_code() -> None:
    both = _PROT_WRITE | _PROT_EXEC
    _load_filter(
        [
            Rule("mmap", (2, _MASKED_EQUAL, both, both)),
            Rule("mprotect", (2, _MASKED_EQUAL, _PROT_EXEC, _PROT_EXEC)),
            Rule("pkey_mprotect", (2, _MASKED_EQUAL, _PROT_EXEC, _PROT_EXEC)),
            Rule("shmat", (2, _MASKED_EQUAL, 0o100000, 0o100000)),
        ]
    )


def _deny_namespaces() -> None:
    clones = [Rule("clone", (0, _MASKED_EQUAL, flag, flag)) for flag in _CLONE_NAMESPACES]
    _load_filter([*clones, Rule("clone3", error=errno.ENOSYS), Rule("unshare"), Rule("setns")])


def _restrict_families(allowed: list[str]) -> None:
    numbers = {FAMILIES[name] for name in allowed}
    denied = [(0, _EQUAL, number, 0) for number in range(MAX_FAMILY + 1) if number not in numbers]
    comparisons = [*denied, (0, _GREATER, MAX_FAMILY, 0)]
    _load_filter([Rule("socket", comparison, errno.EAFNOSUPPORT) for comparison in comparisons])


def _allow_only(syscalls: set[str]) -> None:
    _load_filter([Rule(name) for name in sorted(syscalls)], otherwise=_error(errno.EPERM), action=_ALLOW)


def _allowed_syscalls(filters: list[str]) -> set[str]:
    """The first filter is a list of allowed calls; `~` removes calls from it."""
    sets = _syscall_sets()
    allowed = _expand("@default", sets)
    for line in filters:
        names = {name for entry in line.removeprefix("~").split() for name in _expand(entry, sets)}
        allowed = allowed - names if line.startswith("~") else allowed | names
    return allowed


def _syscall_sets() -> dict[str, list[str]]:
    listed = subprocess.run(
        ["systemd-analyze", "--no-pager", "syscall-filter"], check=True, capture_output=True, text=True
    ).stdout
    sets: dict[str, list[str]] = {}
    for line in listed.splitlines():
        if line.startswith("@"):
            members = sets[line.strip()] = []
        elif line.startswith(" ") and not line.strip().startswith("#"):
            members.append(line.strip())
    return sets


def _expand(entry: str, sets: dict[str, list[str]]) -> set[str]:
    if not entry.startswith("@"):
        return {entry}
    return {inner for name in sets[entry] for inner in _expand(name, sets)}


if __name__ == "__main__":
    main(*sys.argv[1:])

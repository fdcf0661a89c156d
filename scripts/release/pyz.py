"""Builds svcnode.pyz: svcnode with all drivers in one file, for each supported Python on Linux with this processor.

python -m scripts.release.pyz FILE

It holds two zip files for a Python: any.zip with the files that all versions share, and one with its compiled modules.
The same sources and pins give the same bytes: packages are pinned by hash, and what the installer writes is left out.
"""

from __future__ import annotations

import hashlib
import io
import json
import platform
import sys
import tempfile
import tomllib
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZIP_STORED, ZipFile, ZipInfo

from scripts.release.commands import ROOT, find_uv, run

PINS = ROOT / "requirements" / "runtime.txt"
GLIBC = "manylinux_2_28"
WITHOUT_WHEEL = ("nkeys", "oncalendar")  # on the package index; built here, and without compiled modules
# Written by the installer: times, paths of this machine, and scripts that name its Python.
INSTALLER_FILES = {"INSTALLER", "RECORD", "REQUESTED", "direct_url.json", "uv_build.json", "uv_cache.json", ".lock"}
# Without its end, the file is no zip file, and Python reads it as source: the unknown encoding is all that it prints.
HEADER = b"#!/usr/bin/env python3\n# coding: svcnode.pyz-is-incomplete--copy-it-again\n"
Tree = dict[str, bytes]  # the files by path


def main() -> None:
    file = Path(sys.argv[1])
    with tempfile.TemporaryDirectory(prefix="svcnode-pyz-") as name:
        wheel = build_wheel(Path(name))
        trees = {abi_of(python): installed(wheel, python, Path(name, python)) for python in supported_pythons()}
    write(file, trees)
    print(f"{file}: {file.stat().st_size / 2**20:.0f} MiB, for {', '.join(trees)}")


def build_wheel(folder: Path) -> Path:
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT)
    (wheel,) = folder.glob("*.whl")
    return wheel


def supported_pythons() -> list[str]:
    """Such as "3.11", from the classifiers."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    versions = [text.rpartition(" :: ")[2] for text in project["classifiers"] if "Language :: Python :: 3." in text]
    return sorted(versions, key=lambda version: int(version.partition(".")[2]))


def abi_of(python: str) -> str:
    return f"cpython-{python.replace('.', '')}-{platform.machine()}-linux-gnu"


def installed(wheel: Path, python: str, folder: Path) -> Tree:
    """The files of svcnode and its packages for a Python that need not be installed here."""
    uv = find_uv()
    run(
        *(uv, "pip", "install", "--quiet", "--target", folder, "--python", sys.executable, "--python-version", python),
        *("--python-platform", f"{platform.machine()}-{GLIBC}", "--only-binary", ":all:"),
        *(part for name in WITHOUT_WHEEL for part in ("--no-binary", name)),
        *("--require-hashes", "-r", PINS, "--build-constraints", ROOT / "requirements" / "build.txt"),
    )
    run(uv, "pip", "install", "--quiet", "--target", folder, "--python", sys.executable, "--no-deps", wheel)
    files = sorted(path for path in folder.rglob("*") if path.is_file() and is_packaged(path.relative_to(folder)))
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def is_packaged(path: Path) -> bool:
    return path.parts[0] != "bin" and "__pycache__" not in path.parts and path.name not in INSTALLER_FILES


def write(file: Path, trees: dict[str, Tree]) -> None:
    """`trees` is by the name of the binary interface of a Python."""
    shared = dict(set.intersection(*(set(tree.items()) for tree in trees.values())))
    parts = {"any.zip": zipped(shared)}
    digests = {}
    for abi, tree in trees.items():
        part = zipped({name: content for name, content in tree.items() if name not in shared})
        parts[f"{abi}.zip"] = part
        digests[abi] = hashlib.sha256(parts["any.zip"] + part).hexdigest()[:32]
    here = Path(__file__).parent
    content = {
        "__main__.py": (here / "pyz_main.py").read_bytes(),
        "packages.json": json.dumps(digests).encode(),
        "pyz_unpack.py": (here / "pyz_unpack.py").read_bytes(),
        **parts,
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(HEADER + zipped(content, ZIP_STORED))
    file.chmod(0o755)


def zipped(files: Tree, compression: int = ZIP_DEFLATED) -> bytes:
    """Without times and permissions, which differ between machines."""
    buffer = io.BytesIO()
    with ZipFile(buffer, "w", compression) as archive:
        for name, content in sorted(files.items()):
            archive.writestr(ZipInfo(name), content, compress_type=compression)
    return buffer.getvalue()


if __name__ == "__main__":
    main()

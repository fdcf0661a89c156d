"""`make release`: builds all files of a release from its tag into dist/vVERSION, and shows that the builds repeat.

The sdist, the wheel and svcnode.pyz are built twice, the second time in another folder, from a clone of the tag: the
bytes must be the same. The folder gets its name when it is complete.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import tempfile
from pathlib import Path

from scripts.release import artefacts
from scripts.release.commands import ROOT, make, run
from scripts.release.tag import checked_release


def main() -> None:
    release = checked_release(ROOT)
    check_builders()
    os.environ["SOURCE_DATE_EPOCH"] = release.commit_time
    folder = ROOT / "dist" / f"v{release.version}"
    with tempfile.TemporaryDirectory(prefix="partial-", dir=made(folder.parent)) as name:
        built = made(Path(name, "files"))
        build_twice(built)
        build_deb(built)
        build_image(built, release.version)
        describe(built, release.version, release.notes)
        shutil.rmtree(folder, ignore_errors=True)
        built.rename(folder)
    print(f"{folder.relative_to(ROOT)}:")
    for file in sorted(folder.iterdir()):
        print(f"  {file.name}, {file.stat().st_size:,} bytes")


def check_builders() -> None:
    """Before the builds, which take minutes."""
    packages = {"dpkg-buildpackage": "dpkg-dev", "dh": "debhelper", "buildah": "buildah"}
    missing = [package for program, package in packages.items() if shutil.which(program) is None]
    if missing:
        sys.exit(f"make release: missing programs: sudo apt-get install --no-install-recommends {' '.join(missing)}")


def build_twice(folder: Path) -> None:
    print("sdist, wheel and pyz ...", flush=True)
    artefacts.build_sdist_and_wheel(folder)
    artefacts.build_pyz(folder)
    with tempfile.TemporaryDirectory(prefix="svcnode-release-") as name:
        clone, again = Path(name, "clone"), made(Path(name, "files"))
        run("git", "clone", "--quiet", "--no-hardlinks", ROOT, clone)
        run("git", "-C", clone, "checkout", "--quiet", "--detach", run("git", "rev-parse", "HEAD").strip())
        artefacts.build_sdist_and_wheel(again, clone)
        artefacts.build_pyz(again, clone)
        if names := artefacts.differing(folder, again):
            sys.exit(f"make release: a second build differs, so that users cannot verify it: {', '.join(names)}")
    print("sdist, wheel and pyz: a second build in another folder has the same bytes")


def build_deb(folder: Path) -> None:
    print("deb ...", flush=True)
    with tempfile.TemporaryDirectory(prefix="svcnode-release-") as name:
        for copy in (Path(name), folder):
            for old in (ROOT / "dist").glob("*.deb"):
                old.unlink()
            make("deb")
            (deb,) = (ROOT / "dist").glob("*.deb")
            shutil.copy(deb, copy)
        same = (Path(name) / deb.name).read_bytes() == deb.read_bytes()
    print(f"deb: a second build {'has the same' if same else 'has other'} bytes")


def build_image(folder: Path, version: str) -> None:
    """As a file that `docker load` and `podman load` read."""
    print("image ...", flush=True)
    make("image")
    buildah = shlex.split(os.environ.get("BUILDAH", "buildah"))
    image = f"{os.environ.get('IMAGE', 'svcnode')}:{version}"
    run(*buildah, "push", "--quiet", image, f"docker-archive:{folder}/svcnode-{version}-image.tar:{image}")


def describe(folder: Path, version: str, notes: str) -> None:
    print("metadata, SBOM, notes and checksums ...", flush=True)
    (wheel,) = folder.glob("*.whl")
    (sdist,) = folder.glob("*.tar.gz")
    artefacts.check_packages(wheel, sdist)
    artefacts.write_sbom(folder / f"svcnode-{version}.cdx.json", version, wheel)
    (folder / "NOTES.md").write_text(notes, encoding="utf-8")
    artefacts.write_sums(folder)


def made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


if __name__ == "__main__":
    main()

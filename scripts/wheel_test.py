"""Builds the wheel and runs tests against it, on every supported interpreter that is installed, two at a time.

With --smoke, it runs only a worked example, on this interpreter.

The tests run from a copy outside the source tree, so that nothing but the installed package can be imported. The
unit tests run only on the other interpreters: `make test` runs them on this one.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SMOKE_TESTS = ("tests/integration/test_worked_example.py",)
TESTS = ("tests/behaviour", *SMOKE_TESTS)
UNIT_TESTS = ("tests/unit", "--hypothesis-profile=quick", "-n", "2", "--dist", "loadfile")
REQUIRED_FILES = ("svcnode/py.typed", "svcnode/api/openapi.json")
PRINT_LOCATION = "import svcnode; print(svcnode.__file__)"


def main() -> int:
    is_smoke = "--smoke" in sys.argv[1:]
    with tempfile.TemporaryDirectory(prefix="svcnode-wheel-") as name:
        folder = Path(name)
        wheel = build(folder / "dist")
        copy_tests(folder / "elsewhere")
        with ThreadPoolExecutor(max_workers=2) as pool:
            pythons = [sys.executable] if is_smoke else interpreters()
            for tested in [pool.submit(test, wheel, python, folder, is_smoke=is_smoke) for python in pythons]:
                tested.result()
    print("the wheel passes")
    return 0


def build(dist: Path) -> Path:
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", dist, ROOT)
    (wheel,) = dist.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    for must in REQUIRED_FILES:
        if must not in names:
            sys.exit(f"{wheel.name} lacks {must}")
    unexpected = [name for name in names if not name.startswith("svcnode")]
    if unexpected:
        sys.exit(f"{wheel.name} contains unexpected files: {', '.join(unexpected)}")
    return wheel


def copy_tests(elsewhere: Path) -> None:
    shutil.copytree(ROOT / "tests", elsewhere / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", elsewhere)  # the settings of pytest


def interpreters() -> list[str]:
    """This one first, then the others that pyproject.toml names."""
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    supported = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', project)
    others = [find_interpreter(version) for version in supported if version != version_of(sys.executable)]
    return [sys.executable, *filter(None, others)]


def find_interpreter(version: str) -> str | None:
    name = f"python{version}"
    candidates = [shutil.which(name), *Path.home().glob(f".pyenv/versions/{version}*/bin/{name}")]
    found = next((str(one) for one in candidates if one and version_of(str(one)) == version), None)
    if found is None:
        print_line("build", f"{name} is not installed, and not tested")
    return found


def version_of(python: str) -> str:
    """Such as "3.13"; empty if it does not run, such as a pyenv shim without a version."""
    command = [python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def test(wheel: Path, python: str, folder: Path, *, is_smoke: bool) -> None:
    elsewhere = folder / "elsewhere"
    version = version_of(python)
    venv = folder / f"venv-{version}"
    installed = venv / "bin" / "python"
    uv = find_uv()
    locked = ROOT / "requirements" / "dev.txt"
    run(uv, "venv", "--quiet", "--python", python, "--no-python-downloads", venv, label=version)
    run(uv, "pip", "sync", "--quiet", "--python", installed, "--require-hashes", locked, label=version)
    run(uv, "pip", "install", "--quiet", "--python", installed, "--no-deps", wheel, label=version)
    command = [str(installed), "-c", PRINT_LOCATION]
    location = subprocess.run(
        command, cwd=elsewhere, env=clean_environ(), capture_output=True, text=True, check=True
    ).stdout.strip()
    if "site-packages" not in location:
        sys.exit(f"svcnode is imported from {location}, not from the wheel")
    tests = SMOKE_TESTS if is_smoke else TESTS if python == sys.executable else (*TESTS, *UNIT_TESTS)
    run(installed, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests, cwd=elsewhere, label=version)


def find_uv() -> str:
    ours = ROOT / ".uv" / "bin" / "uv"
    found = str(ours) if ours.exists() else shutil.which("uv")
    return found or sys.exit("uv is neither in .uv/bin nor on PATH; `make setup` installs it")


def run(*command: str | Path, cwd: Path = ROOT, label: str = "build") -> None:
    """Print and run a command; exit with its code if it fails. `label` precedes each line of output."""
    argv = [str(part) for part in command]
    print_line(label, f"$ {' '.join(argv)}")
    with subprocess.Popen(
        argv, cwd=cwd, env=clean_environ(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        for line in process.stdout or ():
            print_line(label, line.rstrip("\n"))
    if process.returncode:
        sys.exit(process.returncode)


def print_line(label: str, line: str) -> None:
    sys.stdout.write(f"{label}: {line}\n")  # one write, so that lines do not mix
    sys.stdout.flush()


def clean_environ() -> dict[str, str]:
    """Without variables that change where an interpreter finds modules."""
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}


if __name__ == "__main__":
    sys.exit(main())

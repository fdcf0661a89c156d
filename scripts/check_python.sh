#!/bin/sh
# check_python.sh PYTHON: fails with one line if `make` cannot use this interpreter, which may be of any version.
python=$1

fail() {
    echo "make: $*" >&2
    exit 1
}

version=$("$python" -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])' 2>/dev/null) ||
    fail "svcnode needs Python 3.11 or later, and $python does not run; name another: make run PYTHON=python3.12"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    fail "svcnode needs Python 3.11 or later, and $python is $version; name another: make run PYTHON=python3.12"
"$python" -c 'import ensurepip, venv' 2>/dev/null ||
    fail "$python has no venv module; install it (Debian, Ubuntu: sudo apt-get install python${version%.*}-venv)," \
        "or name another Python: make run PYTHON=python3.12"

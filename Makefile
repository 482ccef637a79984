# Every target sets up what it needs: a virtual environment in .venv, filled from the locks and nothing else.
# PYTHON chooses the interpreter (3.11 to 3.14), PYTEST_ARGS adds arguments to pytest.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
PYTEST_ARGS ?=
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.from-locks
LOCKS := packaging/locks
PROTOS := $(wildcard nodecpu/proto/*.proto tests/containerd/*.proto)

# No dependency may come in by any other way than the locks, not even to build one (--no-build-isolation).
INSTALL = $(BIN)/python -m pip --disable-pip-version-check install -qq --no-build-isolation --no-deps

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: venv
venv: $(READY) ## make the virtual environment

$(READY): $(LOCKS)/build.txt $(LOCKS)/dev.txt pyproject.toml
	@echo "setting up $(VENV) from the locks: once, a minute or a few" >&2
	$(PYTHON) -m venv --clear $(VENV)
	$(INSTALL) --require-hashes -r $(LOCKS)/build.txt
	$(INSTALL) --require-hashes -r $(LOCKS)/dev.txt
	$(INSTALL) --editable .
	$(BIN)/python -m pip --disable-pip-version-check check
	touch $@

.PHONY: demo
demo: $(READY) ## play the whole story on one machine, over real sockets
	$(BIN)/nodecpu lab

.PHONY: test
test: $(READY) ## run every test that this machine can run; the others say why they were skipped (machines: test-package, test-node)
	$(BIN)/python -m pytest -m "not nspawn and not vm" $(PYTEST_ARGS)

.PHONY: test-package
test-package: $(READY) ## build a package, live with it on a real systemd, by apt and by the playbooks: install, upgrade, remove (root)
	$(BIN)/python -m pytest tests/e2e/test_package_life.py tests/e2e/test_ansible.py \
	  tests/e2e/test_ansible_mistakes.py tests/e2e/test_vagrant.py $(PYTEST_ARGS)

.PHONY: test-node
test-node: $(READY) ## install the package by the role on an emulated node, 4 NUMA nodes, real containerd (root; 40 minutes)
	$(BIN)/python -m pytest -m vm tests/e2e $(PYTEST_ARGS)

.PHONY: test-node-short
test-node-short: $(READY) ## the part of test-node that CI has time for (root; 12 minutes)
	$(BIN)/python -m pytest -m vm_short tests/e2e $(PYTEST_ARGS)

.PHONY: crash
CRASH_ARGS ?=
crash: $(READY) ## kill the daemon at every effect and at 1,000 random moments (CRASH_ARGS="KILLS SEED"; 20 minutes)
	$(BIN)/python -m tests.crash $(CRASH_ARGS)

.PHONY: torment
TORMENT_ARGS ?=
torment: $(READY) ## kill a real containerd 20 times and the daemon 50 under load (root; TORMENT_ARGS="20 50 SEED")
	$(BIN)/python -m tests.containerd $(TORMENT_ARGS)

.PHONY: soak
SOAK_ARGS ?=
soak: $(READY) ## play a node's life, a million events (SOAK_ARGS="EVENTS SEED"; minutes)
	$(BIN)/python -m tests.soak $(SOAK_ARGS)

.PHONY: fuzz
FUZZ_ARGS ?=
fuzz: $(READY) ## hostile input for every codec and decoder (FUZZ_ARGS="COUNT SEED"; minutes)
	$(BIN)/python -m tests.fuzz.nri $(FUZZ_ARGS)
	$(BIN)/python -m tests.fuzz.decoders $(FUZZ_ARGS)
	$(BIN)/python -m tests.fuzz.http

.PHONY: lint
lint: $(READY) ## style, types, and generated files that are up to date
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(MAKE) --no-print-directory proto OUT=build/proto
	for proto in $(PROTOS:.proto=); do \
	  for file in $${proto}_pb2.py $${proto}_pb2.pyi; do \
	    cmp $$file build/proto/$$file || { echo "$$file is not what its .proto gives: run make proto" >&2; exit 1; }; \
	  done; \
	done

.PHONY: bench
BASE ?=
PAGE ?=
bench: $(READY) ## measure, and print the figures as tables (minutes); BASE=revision compares that commit with the tree
	mkdir -p build
	$(BIN)/python -m tests.bench --json build/bench.json $(if $(PAGE),--page $(PAGE)) $(if $(BASE),--base $(BASE))

MUTANTS_ARGS ?=

.PHONY: mutants
mutants: $(READY) ## change the decisions in small ways and see whether tests notice; MUTANTS_ARGS="--sample 20" tries a part
	$(BIN)/python -m tests.mutants $(MUTANTS_ARGS)

.PHONY: e2e
e2e: $(READY) ## the daemon against stand-ins, real containerds, systemds, a NUMA machine; nothing may be skipped (root)
	NODECPU_CI=1 $(BIN)/python -m pytest -m "lab or containerd or nspawn or vm" $(PYTEST_ARGS)

# What packages are built with has an environment of its own: the locked tools, and what nodecpu needs to tell of itself.
PACKAGE_VENV := build/packaging
PACKAGE_READY := $(PACKAGE_VENV)/.from-locks
PACKAGE = PYTHONPATH=.:packaging $(PACKAGE_VENV)/bin/python -m nodecpu_packaging.build
PACKAGE_ARGS ?=

.PHONY: package
package: $(PACKAGE_READY) ## build deb and rpm for each distribution, the wheel and the source archive in dist/
	SOURCE_DATE_EPOCH=$${SOURCE_DATE_EPOCH:-$$(git log -1 --format=%ct)} $(PACKAGE_VENV)/bin/hatchling build --directory dist
	$(PACKAGE) $(PACKAGE_ARGS)

.PHONY: package-tools
package-tools: $(PACKAGE_READY) ## make the environment that packages are built in

$(PACKAGE_READY): $(LOCKS)/build.txt $(LOCKS)/package.txt $(LOCKS)/runtime.txt
	@echo "setting up $(PACKAGE_VENV) from the locks: once, a minute or a few" >&2
	$(PYTHON) -m venv --clear $(PACKAGE_VENV)
	for lock in build package runtime; do \
	  $(PACKAGE_VENV)/bin/python -m pip --disable-pip-version-check install -qq --no-build-isolation --no-deps \
	    --require-hashes -r $(LOCKS)/$$lock.txt; \
	done
	touch $@

# Ansible has an environment of its own as well: it pins what it needs more narrowly.
ANSIBLE_VENV := build/ansible
ANSIBLE_READY := $(ANSIBLE_VENV)/.from-locks

.PHONY: ansible-tools
ansible-tools: $(ANSIBLE_READY) ## make the environment that the playbooks are run and checked in

$(ANSIBLE_READY): $(LOCKS)/ansible.txt
	$(PYTHON) -m venv --clear $(ANSIBLE_VENV)
	$(ANSIBLE_VENV)/bin/python -m pip --disable-pip-version-check install -qq --no-deps --only-binary :all: \
	  --require-hashes -r $(LOCKS)/ansible.txt
	touch $@

.PHONY: proto
OUT := .
proto: $(READY) ## generate the code of the .proto files (they are committed)
	mkdir -p $(OUT)
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m grpc_tools.protoc -I . --python_out=$(OUT) --mypy_out=quiet:$(OUT) $(PROTOS)

.PHONY: rules
rules: $(READY) ## write docs/reference/rules.md: which test covers which rule
	$(BIN)/python -m tests.rules

# The tool that writes the locks is locked too. It asks PyPI alone, whatever this machine's pip is told to ask.
UV := build/lock/bin/uv
COMPILE = env -u UV_INDEX -u UV_INDEX_URL -u UV_EXTRA_INDEX_URL -u UV_DEFAULT_INDEX -u UV_FIND_LINKS $(UV) pip compile \
  --no-config --system-certs --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
  --no-annotate --custom-compile-command "make lock" $(if $(UPGRADE),--upgrade)

.PHONY: lock
lock: ## write packaging/locks anew from pyproject.toml (UPGRADE=1: newest versions)
	$(PYTHON) -m venv --clear build/lock
	build/lock/bin/python -m pip --disable-pip-version-check install --quiet --require-hashes -r $(LOCKS)/lock.txt
	$(COMPILE) --output-file $(LOCKS)/lock.txt $(LOCKS)/lock.in
	$(COMPILE) --output-file $(LOCKS)/dev.txt --extra dev pyproject.toml
	$(COMPILE) --output-file $(LOCKS)/build.txt --constraint $(LOCKS)/dev.txt $(LOCKS)/build.in
	$(COMPILE) --output-file $(LOCKS)/runtime.txt --constraint $(LOCKS)/dev.txt pyproject.toml
	$(COMPILE) --output-file $(LOCKS)/package.txt --constraint $(LOCKS)/lock.txt $(LOCKS)/package.in
	$(COMPILE) --output-file $(LOCKS)/ansible.txt $(LOCKS)/ansible.in

.PHONY: clean
clean: ## remove what was built and cached; .venv stays
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find nodecpu tests -name __pycache__ -type d -prune -exec rm -rf {} +

.PHONY: distclean
distclean: clean ## remove .venv as well
	rm -rf $(VENV)

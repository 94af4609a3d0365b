# Two commands do all the set-up: `make run` trains the bundled main job, `make test` checks the
# project. Both need Python 3.11 or newer, make and a package index, and are quick the second time.

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

# One file of tests a process at a time (tests/conftest.py).
PYTEST := $(BIN)/pytest -n auto --maxprocesses=8

.PHONY: run test test-all lint ruff types imports fuzz soak sglang-cpu clean

run: $(READY)
	$(BIN)/asyncrl train run.toml

# One thread for each process: tests start many at a time, and oversubscribed cores make all of them
# ten times slower.
test test-all soak: export OMP_NUM_THREADS = 1

# What a person runs before a commit: minutes on two cores.
test: lint
	$(PYTEST) -m "not explore"

# All there is: the tests of `make test`, and those that try more seeds, kills and servers.
test-all: lint
	$(PYTEST)

lint: $(READY)
	@$(MAKE) --no-print-directory --jobs 2 ruff types imports

ruff: $(READY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: $(READY)
	$(BIN)/mypy

imports: $(READY)
	$(BIN)/lint-imports

$(READY): requirements.lock pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "asyncrl needs Python 3.11 or newer: make PYTHON=python3.12")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --disable-pip-version-check -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps -e .
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --only-binary atheris atheris==3.0.0 || echo "no atheris for this machine: its fuzzers are skipped"
	touch $@

# The real SGLang server on a CPU, in an environment of its own (its pins differ): 0.6 GB to download, 2.4 GB on disk, a minute or two, once.
# docs/sglang.md is about its use; without it the tests that need a server skip, and say so.
SGLANG := .venv-sglang
SGLANG_SOURCES := docker/sglang-cpu/requirements.txt docker/sglang-cpu/unresolved.txt docker/sglang-cpu/pyproject.toml \
	$(wildcard docker/sglang-cpu/cpu_native/*.py)

sglang-cpu: $(SGLANG)/.ready

$(SGLANG)/.ready: $(SGLANG_SOURCES)
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11) and "the pins of SGLang on a CPU are for Python 3.11: make sglang-cpu PYTHON=python3.11")'
	$(PYTHON) -m venv $(SGLANG)
	$(SGLANG)/bin/python -m pip install --quiet --disable-pip-version-check -r docker/sglang-cpu/requirements.txt
	$(SGLANG)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r docker/sglang-cpu/unresolved.txt
	$(SGLANG)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation docker/sglang-cpu
	touch $@

# Each fuzzer for so many seconds; what one finds is kept, and said.
FUZZ_S ?= 20
fuzz: $(READY)
	$(BIN)/python tests/fuzz/harness.py --seconds $(FUZZ_S)

# What `make test` leaves out; then ten thousand runs in virtual time, each with other faults. A seed
# that fails is printed with the command that shows it again.
soak: $(READY)
	$(PYTEST) -m explore
	$(BIN)/asyncrl simulate --seeds 0:10000 --jobs $$(nproc)

clean:
	rm -rf .venv .venv-sglang .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis

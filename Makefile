# Two commands do all the set-up: `make run` trains the bundled main job, `make test` checks everything.
# Both need Python 3.11 or newer, make and a package index, and are quick the second time.

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: run test lint fuzz soak clean

run: $(READY)
	$(BIN)/asyncrl train run.toml

# One thread for each process: tests start many at a time, and oversubscribed cores make all of them ten times slower.
test: export OMP_NUM_THREADS = 1
test: lint
	$(BIN)/pytest

lint: $(READY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

$(READY): requirements.lock pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "asyncrl needs Python 3.11 or newer: make PYTHON=python3.12")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --disable-pip-version-check -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps -e .
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --only-binary atheris atheris==3.0.0 || echo "no atheris for this machine: its fuzzers are skipped"
	touch $@

# Each fuzzer for so many seconds; what one finds is kept, and said.
FUZZ_S ?= 20
fuzz: $(READY)
	$(BIN)/python tests/fuzz/harness.py --seconds $(FUZZ_S)

# Ten thousand runs in virtual time, each with other faults; a seed that fails is printed with the command that shows it again.
soak: export OMP_NUM_THREADS = 1
soak: $(READY)
	$(BIN)/asyncrl simulate --seeds 0:10000 --jobs $$(nproc)

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis

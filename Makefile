# `make help` lists the targets. Everything is installed into .venv; nothing is written outside of the checkout.
#
# Most of what can be run is a row of one of three tables, `prove`, `bench` and `package`: a line of text, then its command
# and what it needs beyond .venv. Each row is a target of its own too: `make crash` is `make prove WHAT=crash`, and
# `make bench-smoke` is `make bench WHAT=smoke`.
VENV := .venv
BIN := $(VENV)/bin
# The first of these that is Python 3.11 or newer is used; `make PYTHON=/path/to/python` overrides it.
CANDIDATES := python3 python3.14 python3.13 python3.12 python3.11
CHECK := import sys; sys.exit(sys.version_info < (3, 11))
SOURCES := setup.cfg setup.py pyproject.toml $(shell find pylogd protocol twisted -type f ! -name '*.py[co]' ! -name '*.so' 2>/dev/null)
WHEEL := $(VENV)/.wheel
INSTALLED := $(VENV)/.installed
PYTEST := PYLOGD_TEST_INSTALLED=1 $(BIN)/pytest
RUN := $(BIN)/python -m
# The names in the tables. What `make prove`, `make bench` and `make package` are told to run has to be there.
rows.prove := $(shell sed -n 's/^\#prove \([a-z-]*\) .*/\1/p' Makefile)
rows.package := $(shell sed -n 's/^\#package \([a-z-]*\) .*/\1/p' Makefile)
rows.bench := before-after clients cluster controller-change end-to-end failed-directory failover floor isolation micro \
	mirror partitions peers smoke spark transactions
$(foreach table,$(filter prove bench package,$(MAKECMDGOALS)),$(foreach name,$(filter-out $(rows.$(table)),$(WHAT)),\
	$(error $(name) is nothing that `make $(table)` runs. There is: $(rows.$(table)))))

.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

help: ## list the targets
	@awk -F ' ## ' '/^##@/ { print "\n" substr($$0, 5) } \
		/^[a-z-]+:.* ## / { sub(/:.*/, "", $$1); printf "  make %-12s %s\n", $$1, $$2 }' Makefile

##@ Set up

install: $(INSTALLED) ## create .venv with pylogd's wheel and the test dependencies

$(BIN)/python:
	@python="$(PYTHON)"; \
	if [ -z "$$python" ]; then \
		for candidate in $(CANDIDATES); do \
			if "$$candidate" -c '$(CHECK)' >/dev/null 2>&1; then python=$$candidate; break; fi; \
		done; \
	elif ! "$$python" -c '$(CHECK)' >/dev/null 2>&1; then \
		echo "make: PYTHON=$$python is not Python 3.11 or newer" >&2; exit 1; \
	fi; \
	if [ -z "$$python" ]; then \
		echo "make: pylogd needs Python 3.11 or newer, and none was found (tried: $(CANDIDATES))." >&2; \
		echo "      Install one (Debian: apt-get install python3 python3-venv), or run make PYTHON=/path/to/python" >&2; \
		exit 1; \
	fi; \
	if ! "$$python" -c 'import ensurepip, venv' >/dev/null 2>&1; then \
		echo "make: $$python can't make a virtual environment: its venv or ensurepip module is missing." >&2; \
		echo "      On Debian and Ubuntu: apt-get install python3-venv" >&2; \
		exit 1; \
	fi; \
	echo "make: $(VENV) with $$("$$python" --version)"; \
	"$$python" -m venv $(VENV)

# Dependencies are installed again when setup.cfg changes, the wheel is built again when the sources change.
$(WHEEL): $(SOURCES) | $(BIN)/python
	@echo "make: building the wheel"
	@sh tools/build-wheel.sh $(BIN)/python $(VENV)/wheel
	@touch $@

$(VENV)/.dependencies: setup.cfg | $(WHEEL)
	@echo "make: installing dependencies from PyPI: 1.9 GB for demo and tests, which takes some minutes"
	@$(BIN)/python -m pip install --quiet --no-compile --upgrade \
		"$$(ls $(VENV)/wheel/pylogd_broker-*.whl)[test,demo,connect]"
	@$(BIN)/python -m compileall -qq -j 0 $(VENV)/lib || true  # on all cores; files for other Pythons can't be compiled
	@touch $@

# An early version of the distribution was named pylogd and has the same files: uninstall it first.
$(INSTALLED): $(WHEEL) $(VENV)/.dependencies
	@! $(BIN)/python -m pip show --quiet pylogd 2>/dev/null || $(BIN)/python -m pip uninstall --quiet --yes pylogd
	@$(BIN)/python -m pip install --quiet --force-reinstall --no-deps $(VENV)/wheel/pylogd_broker-*.whl
	@touch $@

# A target that needs more than the tests installs the extra of its name.
$(VENV)/.lint $(VENV)/.bench $(VENV)/.coverage $(VENV)/.fuzz $(VENV)/.release $(VENV)/.browser: $(VENV)/.%: setup.cfg $(INSTALLED)
	@$(BIN)/python -m pip install --quiet "$$(ls $(VENV)/wheel/pylogd_broker-*.whl)[$*]"
	@touch $@

demo: install ## publish 336,776 real events to a broker, read them with another client, load them with Spark, query them with DuckDB
	-@sh tools/find-java.sh
	$(BIN)/pylogd demo $(DEMO_ARGS)

clean: ## remove .venv and everything that was built
	rm -rf $(VENV) build dist *.egg-info .tox .pytest_cache .mypy_cache .ruff_cache .hypothesis .cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# What scripts find or install.
java haproxy promtool suites librdkafka chromium:
	@sh tools/find-$@.sh

##@ Check

check: $(VENV)/.lint ## check lint, format and types, of the tests too (half a minute)
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --check --quiet . || { echo "make: run $(BIN)/ruff format to lay the files out" >&2; exit 1; }
	@$(BIN)/mypy --no-error-summary
	@echo "make: lint, format and types are clean"

lint: check

# Lines and branches together, in percent. A change may raise these floors, but not lower them.
COVERAGE_FLOORS := wire:97 broker/log:90 client/core:90
COVERED := $(addprefix tests/unit/,wire broker/log client) \
	$(addprefix tests/property/test_,$(addsuffix .py,codecs fast_fetch_codec fast_produce_codec framing log_append log_model \
	membership placement placement_moves producer_model records request_batches row_batches speedups validation))

coverage: $(VENV)/.coverage ## branch coverage of wire, log and client/core by unit and property tests, each with a floor
	@mkdir -p .cache
	@COVERAGE_FILE=.cache/coverage PYLOGD_TEST_INSTALLED=1 $(BIN)/coverage run $(BIN)/pytest -q $(COVERED)
	@for part in $(COVERAGE_FLOORS); do \
		COVERAGE_FILE=.cache/coverage $(BIN)/coverage report --skip-covered --show-missing \
			--include="*/pylogd/$${part%:*}/*" --fail-under="$${part#*:}" || failed=1; \
	done; test -z "$$failed"

site: install ## build the documentation as a site in .cache/site/html, check its links, and that it needs no network (npm has its script for diagrams)
	@mermaid=$$(sh tools/find-mermaid.sh) && $(BIN)/python tools/build_site.py --mermaid "$$mermaid"

##@ Test

smoke: install java ## are broker, client and Spark source whole: produce, consume, group, transaction, kill -9, a batch of Spark (a minute)
	$(PYTEST) -q tests/integration/test_smoke.py

test: install java ## run the unit, property and contract tests, and the core of the integration tests, against the installed wheel (12 minutes)
test-long: install java haproxy promtool ## run the other tests: Spark, services, clusters that fail, simulations, documents, packages, soaks (16 minutes)
test test-long:
	$(if $(strip $(PYTEST_ARGS)),$(PYTEST) $(PYTEST_ARGS),PYLOGD_TEST_INSTALLED=1 $(BIN)/python tests/parts.py $@ $(BIN)/pytest)

docs-check: install java promtool spark-sql ## run each code block of README.md and docs/, also those that make test-long leaves out (18 minutes)
	$(PYTEST) tests/unit/test_docs_blocks.py tests/unit/broker/security/test_plugins.py tests/integration/docs \
		tests/integration/spark/test_docs.py tests/integration/spark/lake/test_queries.py \
		tests/integration/spark/lake/test_typed.py tests/integration/spark/lake/test_connect.py

bench-test: $(VENV)/.bench librdkafka ## test the benchmarks themselves, after a change of bench/ (a minute)
	$(PYTEST) tests/bench $(PYTEST_ARGS)

##@ Prove, measure, package: without WHAT each lists what there is, and the time that it takes

prove: $(WHAT) ## kill, break and compare, for minutes or hours (WHAT=NAME)
	@$(if $(WHAT),:,$(call list,prove))

bench: $(addprefix bench-,$(or $(WHAT),$(if $(BENCH_ARGS),peers))) ## measure (WHAT=NAME; options in BENCH_ARGS)
	@$(if $(WHAT)$(BENCH_ARGS),:,$(or $(wildcard $(BIN)/python),python3) -m bench list)

package: $(WHAT) ## build and try packages, release (WHAT=NAME)
	@$(if $(WHAT),:,$(call list,package))

# The rows of a table: "#table name | how long | what", run.NAME, and needs.NAME if it needs more than .venv.

#prove acls | a minute | compare decisions by 100,000 random sets of ACLs with a plain oracle
run.acls = PYLOGD_ACL_SETS=100000 $(PYTEST) tests/property/test_acl_rules.py
#prove alerts | 20 minutes | fail brokers, a mirror and the audit under a real Prometheus, which fires the alerts of etc/ (ALERTS_ARGS="--of mirror --only killed")
run.alerts = $(RUN) tests.alerts --results tests/alerts/RESULTS.md $(ALERTS_ARGS)
needs.alerts = java promtool
#prove chain | 15 minutes | act out the whole chain, from producers to audit, while all are killed and frozen (CHAIN_ARGS="--events 30000 --rounds 1": 4)
run.chain = $(RUN) tests.chain --results tests/chain/RESULTS.md $(CHAIN_ARGS)
needs.chain = java haproxy
#prove chaos | an hour | break a loaded cluster and check that nothing is lost
run.chaos = $(RUN) tests.chaos --seconds 3600 --results tests/chaos/RESULTS.md $(CHAOS_ARGS)
#prove conformance | an hour | other projects' clients and suites; writes conformance/RESULTS.md (CONFORMANCE_ARGS="--only secure")
run.conformance = $(RUN) conformance.run $(CONFORMANCE_ARGS)
needs.conformance = suites
#prove conformance-metrics | 2 minutes | lag of groups beside Kafka's and kadm's, and metrics that three clients push; writes conformance/METRICS.md
run.conformance-metrics = $(RUN) conformance.metrics
#prove conformance-spark | minutes | compare Spark's own Kafka source with pylogd's; writes conformance/SPARK.md
run.conformance-spark = $(RUN) conformance.spark_source
needs.conformance-spark = java
#prove console | 10 minutes | time the console on 200,000 partitions, and use it in headless Chromium; writes tests/console/*.md, docs/console/
run.console = $(RUN) tests.console --results tests/console/RESULTS.md && \
	$(RUN) tests.console.flows --results tests/console/BROWSER.md --pictures docs/console
needs.console = $(VENV)/.browser chromium
#prove console-kafka | 5 minutes | use the console on Apache Kafka in headless Chromium; writes tests/console/KAFKA.md
run.console-kafka = $(RUN) tests.console.flows --kafka --results tests/console/KAFKA.md
needs.console-kafka = $(VENV)/.browser chromium java
#prove crash | 10 minutes | kill a loaded broker 1,000 times and check that nothing is lost
run.crash = $(RUN) tests.crash.harness --results tests/crash/RESULTS.md $(CRASH_ARGS)
#prove drill | 5 minutes | make four faults on three brokers and mend them with the console; writes tests/console/DRILL.md, docs/console/
run.drill = $(RUN) tests.console.drill --results tests/console/DRILL.md
needs.drill = $(VENV)/.browser chromium java
#prove exactly-once | half an hour, resumes | kill a Spark query that counts in transactions, and brokers, 50 times
run.exactly-once = $(RUN) tests.exactly_once --folder .cache/exactly-once --results tests/exactly_once/RESULTS.md $(EXACTLY_ONCE_ARGS)
needs.exactly-once = java
#prove fleet | 15 minutes | six brokers with labels over two racks: placement, fail-over of 1,000 partitions, expansion, mirror (FLEET_ARGS="--rounds 1 --only disk": 3)
run.fleet = $(RUN) tests.fleet --results tests/fleet/RESULTS.md $(FLEET_ARGS)
needs.fleet = java
#prove fuzz | a minute | coverage-guided fuzzing of frames, batches and messages (FUZZ_ARGS="--seconds 3600 --keep")
run.fuzz = $(RUN) tests.fuzz $(FUZZ_ARGS)
needs.fuzz = $(VENV)/.fuzz
#prove fuzz-compiled | 20 seconds | hostile input to all compiled functions under AddressSanitizer and UBSan, compared with Python (FUZZ_ARGS="--seconds 3600")
run.fuzz-compiled = $(RUN) tests.fuzz.compiled $(FUZZ_ARGS)
#prove fuzz-requests | 2 minutes | well-formed extreme requests beside a client that must not notice; writes tests/extreme/RESULTS.md (EXTREME_ARGS="--seconds 3600")
run.fuzz-requests = $(RUN) tests.extreme --results tests/extreme/RESULTS.md $(EXTREME_ARGS)
#prove held | 5 minutes | how long the largest requests of every API hold a broker; writes tests/extreme/HELD.md
run.held = $(RUN) tests.extreme.held --results tests/extreme/HELD.md $(HELD_ARGS)
#prove kerberos | seconds | GSSAPI with a real key distribution centre (needs Debian's krb5-kdc, krb5-admin-server and libkrb5-dev)
run.kerberos = $(BIN)/pip install --quiet gssapi k5test pykerberos && $(PYTEST) tests/integration/machine/test_gssapi.py
#prove kills | half an hour, resumes | kill loaders, their workers and brokers 50 times, compare lake and log (KILLS_ARGS="--store s3 --compactor")
run.kills = $(RUN) tests.kills --folder .cache/kills --results tests/kills/RESULTS.md $(KILLS_ARGS)
needs.kills = java
#prove kills-mirror | 25 minutes, resumes | kill mirror, loader and compactor together 50 times, compare both logs and the lake row by row (KILLS_ARGS="--store s3")
run.kills-mirror = $(RUN) tests.kills --mirror --folder .cache/kills --results tests/kills/RESULTS.md $(KILLS_ARGS)
needs.kills-mirror = java
#prove kills-typed | 12 minutes | kill loaders of typed tables 10 times for each format, compare table and quarantine (KILLS_ARGS="--only delta")
run.kills-typed = $(RUN) tests.kills.typed --results tests/kills/RESULTS.md $(KILLS_ARGS)
needs.kills-typed = java
#prove mirror | 4 minutes | copy 60 partitions while workers, topics and links come and go
run.mirror = $(RUN) tests.mirror --results tests/mirror/RESULTS.md $(MIRROR_ARGS)
needs.mirror = java
#prove mirror-kafka | a minute | mirror between pylogd and Apache Kafka, both ways, while the mirror is killed
run.mirror-kafka = $(RUN) tests.mirror.kafka
needs.mirror-kafka = java
#prove mutants | an hour | plant small faults in wire, log, groups and client, one at a time, and see which tests find them (MUTANTS_ARGS="--count 5 --only pylogd/wire": minutes)
run.mutants = $(RUN) tests.mutants --results tests/mutants/RESULTS.md $(MUTANTS_ARGS)
#prove panels | 2 minutes | ask a real Prometheus for each panel of the dashboard and each metric; writes tests/alerts/PANELS.md
run.panels = $(RUN) tests.alerts.panels --results tests/alerts/PANELS.md $(PANELS_ARGS)
needs.panels = java promtool
#prove races | 5 minutes | race and kill loaders of Iceberg and Delta tables (RACES_ARGS="--only delta")
run.races = $(RUN) tests.races --results tests/races/RESULTS.md $(RACES_ARGS)
#prove scale | 15 minutes, 3 GB | simulate clusters of 10 to 2,000 brokers that lose brokers, a rack, or ZooKeeper (SCALE_ARGS="--brokers 10 67": seconds)
run.scale = $(RUN) tests.scale --results tests/scale/RESULTS.md $(SCALE_ARGS)
#prove spark-sql | 3 minutes, 1 GB | run the Spark SQL of docs/tables.md with the packages of Iceberg and Delta, which are downloaded
run.spark-sql = $(RUN) tests.stores.spark_sql
needs.spark-sql = java
#prove stores | 20 minutes | race and kill writers of a lake on local disks, HDFS and S3, and a mirror to HDFS (STORES_ARGS="--only HDFS")
run.stores = $(RUN) tests.stores --results tests/stores/RESULTS.md $(STORES_ARGS) && \
	$(RUN) tests.stores.mirroring --results tests/stores/MIRROR.md
needs.stores = java
#prove strangers | 10 minutes | crowds of hostile connections beside clients that must not notice
run.strangers = $(RUN) tests.strangers --results tests/strangers/RESULTS.md $(STRANGERS_ARGS)
#prove transactions | an hour | check transactions under all faults of chaos; writes tests/transactions_check/RESULTS.md
run.transactions = $(RUN) tests.transactions_check --java --seconds 3600 --results tests/transactions_check/RESULTS.md $(TRANSACTIONS_ARGS)
needs.transactions = java

#package compose | 2 minutes | as root: run the services of the compose file in namespaces, without a container engine; writes tests/packages/COMPOSE.md
run.compose = $(RUN) tests.packages.compose --results tests/packages/COMPOSE.md
needs.compose = java
#package container | 5 minutes | as root: build the container image from Debian's packages, measure and run it; writes tests/packages/CONTAINER.md
run.container = $(RUN) tests.packages.container --results tests/packages/CONTAINER.md
#package debian | 8 minutes | as root: build the Debian package twice, use it in a booted Debian; writes tests/packages/DEBIAN.md
run.debian = $(RUN) tests.packages.debian --results tests/packages/DEBIAN.md
#package first-minutes | 6 minutes | as root: type the README's steps in a new Debian; writes tests/packages/FIRST_MINUTES.md
run.first-minutes = $(RUN) tests.packages.first_minutes --results tests/packages/FIRST_MINUTES.md
#package helm | seconds | check the Helm chart (needs helm, or go, which builds it)
run.helm = sh packages/helm/check.sh
#package newcomer | 2 hours | as root: type the README's commands and make test on machines that have nothing more; writes tests/packages/NEWCOMER.md (NEWCOMER_ARGS="--machine README --steps test --tests tests/unit": 10 minutes)
run.newcomer = $(RUN) tests.packages.newcomer --results tests/packages/NEWCOMER.md $(NEWCOMER_ARGS)
#package release | minutes | build what a release has into dist/release: wheels, source, SBOM, checksums; RELEASE_KEY=FILE signs them
run.release = sh packages/release.sh $(BIN)/python dist/release $(RELEASE_KEY)
needs.release = $(VENV)/.release
#package reproducible | 2 minutes | build a release twice, in different places, and compare the files
run.reproducible = sh packages/reproducible.sh $(BIN)/python
needs.reproducible = $(VENV)/.release
#package upgrade | 5 minutes | upgrade a cluster under load from an earlier commit and back; writes tests/packages/UPGRADE.md (UPGRADE_ARGS="--old COMMIT")
run.upgrade = $(RUN) tests.packages.upgrade --results tests/packages/UPGRADE.md $(UPGRADE_ARGS)
needs.upgrade = java
#package zookeeper-package | a minute | build the wheel of pylogd-zookeeper into dist/ (needs mvn)
run.zookeeper-package = sh packages/zookeeper/build.sh $(BIN)/python dist

# `python -m bench list` has the rows of benchmarks; here is what each needs, and the option that makes it write its page.
needs.bench = $(if $(filter partitions spark,$1),,$(VENV)/.bench) $(if $(filter micro partitions spark,$1),,librdkafka) \
	$(if $(filter cluster end-to-end mirror spark transactions,$1),java)
writes.bench = $(if $(filter end-to-end isolation partitions,$1),--write)

list = sed -n 's/^\#$1 //p' Makefile | awk -F ' [|] ' '{ printf "  %-20s %-23s %s\n", $$1, $$2, $$3 }'

$(filter-out helm zookeeper-package,$(rows.prove) $(rows.package)): install
	$(run.$@)

# These need no wheel.
helm:
	@$(run.$@)

zookeeper-package: $(BIN)/python
	$(run.$@)

$(addprefix bench-,$(rows.bench)): bench-%: install
	$(RUN) bench $* $(call writes.bench,$*) $(BENCH_ARGS)

$(foreach name,$(rows.prove) $(rows.package),$(eval $(name): $(needs.$(name))))
$(foreach name,$(rows.bench),$(eval bench-$(name): $(call needs.bench,$(name))))

# An earlier name.
freeze: bench-isolation

.PHONY: help install demo clean java haproxy promtool suites librdkafka chromium check lint coverage site smoke test test-long docs-check \
	bench-test prove bench package freeze $(rows.prove) $(rows.package) $(addprefix bench-,$(rows.bench))

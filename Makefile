# `make help` lists the targets. Everything is installed into .venv; nothing is written outside of the checkout.
VENV := .venv
BIN := $(VENV)/bin
# The first of these that is Python 3.11 or newer is used; `make PYTHON=/path/to/python` overrides it.
CANDIDATES := python3 python3.14 python3.13 python3.12 python3.11
CHECK := import sys; sys.exit(sys.version_info < (3, 11))
SOURCES := setup.cfg setup.py pyproject.toml $(shell find pylogd protocol twisted -type f ! -name '*.py[co]' ! -name '*.so' 2>/dev/null)
WHEEL := $(VENV)/.wheel
INSTALLED := $(VENV)/.installed
PYTEST := PYLOGD_TEST_INSTALLED=1 $(BIN)/pytest

.PHONY: acls alerts compose console console-kafka drill container debian first-minutes helm release reproducible upgrade zookeeper-package help install java haproxy promtool kerberos demo test check lint coverage fuzz fuzz-compiled fuzz-requests crash chaos kills kills-mirror kills-typed copying exactly-once mirror mirror-kafka transactions conformance conformance-metrics conformance-spark bench bench-spark bench-end-to-end bench-micro bench-mirror bench-smoke bench-cluster bench-clients bench-quotas bench-partitions bench-tls bench-transactions bench-kuaishou freeze held races panels scale spark-sql site docs-check stores strangers clean
.DELETE_ON_ERROR:

help: ## list the targets
	@grep -E '^[a-z-]+:.*## ' Makefile | sed -E 's/^([a-z-]+):.*## /\1\t/' | while IFS='	' read -r name text; do printf '  make %-18s %s\n' "$$name" "$$text"; done

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

java:
	@sh tools/find-java.sh

haproxy:
	@sh tools/find-haproxy.sh

promtool:
	@sh tools/find-promtool.sh

kerberos: install ## GSSAPI with a real key distribution centre (needs Debian's krb5-kdc, krb5-admin-server and libkrb5-dev)
	@$(BIN)/pip install --quiet gssapi k5test pykerberos
	$(PYTEST) tests/integration/test_gssapi.py

test: install java haproxy promtool ## run all tests against the installed wheel, in four parts at the same time
ifeq ($(strip $(PYTEST_ARGS)),)
	PYLOGD_TEST_INSTALLED=1 $(BIN)/python tests/parts.py $(BIN)/pytest
else
	$(PYTEST) $(PYTEST_ARGS)
endif

chaos: install ## break a loaded cluster for an hour and check that nothing is lost; writes tests/chaos/RESULTS.md
	$(BIN)/python -m tests.chaos --seconds 3600 --results tests/chaos/RESULTS.md $(CHAOS_ARGS)

copying: install java ## copy a topic in transactions while copiers and brokers fail; writes tests/copying/RESULTS.md (30 minutes)
	$(BIN)/python -m tests.copying --seconds 1200 --results tests/copying/RESULTS.md $(COPYING_ARGS)

mirror: install java ## copy 60 partitions while workers, topics and links come and go; writes tests/mirror/RESULTS.md (4 minutes)
	$(BIN)/python -m tests.mirror --results tests/mirror/RESULTS.md $(MIRROR_ARGS)

mirror-kafka: install java ## mirror between pylogd and Apache Kafka, both ways, while the mirror is killed (a minute)
	$(BIN)/python -m tests.mirror.kafka

transactions: install java ## check transactions for an hour under all faults of `make chaos`; writes tests/transactions_check/RESULTS.md
	$(BIN)/python -m tests.transactions_check --java --seconds 3600 --results tests/transactions_check/RESULTS.md $(TRANSACTIONS_ARGS)

crash: install ## kill a loaded broker 1,000 times and check that nothing is lost; writes tests/crash/RESULTS.md (10 minutes)
	$(BIN)/python -m tests.crash.harness --results tests/crash/RESULTS.md $(CRASH_ARGS)

kills: install java ## kill loaders, their workers and brokers 50 times, compare lake and log; writes tests/kills/RESULTS.md (half an hour; resumes; KILLS_ARGS="--store s3 --compactor")
	$(BIN)/python -m tests.kills --folder .cache/kills --results tests/kills/RESULTS.md $(KILLS_ARGS)

kills-mirror: install java ## kill mirror, loader and compactor together 50 times, compare both logs and the lake row by row; writes tests/kills/RESULTS.md (25 minutes; resumes; KILLS_ARGS="--store s3")
	$(BIN)/python -m tests.kills --mirror --folder .cache/kills --results tests/kills/RESULTS.md $(KILLS_ARGS)

kills-typed: install java ## kill loaders of typed tables 10 times for each format, compare table and quarantine; writes tests/kills/RESULTS.md (12 minutes; KILLS_ARGS="--only delta")
	$(BIN)/python -m tests.kills.typed --results tests/kills/RESULTS.md $(KILLS_ARGS)

races: install ## race and kill loaders of Iceberg and Delta tables; writes tests/races/RESULTS.md (5 minutes; RACES_ARGS="--only delta")
	$(BIN)/python -m tests.races --results tests/races/RESULTS.md $(RACES_ARGS)

stores: install java ## race and kill writers of a lake on local disks, HDFS and S3; writes tests/stores/RESULTS.md (15 minutes; STORES_ARGS="--only HDFS")
	$(BIN)/python -m tests.stores --results tests/stores/RESULTS.md $(STORES_ARGS)

spark-sql: install java ## run the Spark SQL of docs/tables.md with the packages of Iceberg and Delta (3 minutes, 1 GB of downloads)
	$(BIN)/python -m tests.stores.spark_sql

site: install ## build the documentation as a site in .cache/site/html, check its links, and that it needs no network (npm has its script for diagrams)
	@mermaid=$$(sh tools/find-mermaid.sh) && $(BIN)/python tools/build_site.py --mermaid "$$mermaid"

docs-check: install java promtool spark-sql ## run each code block of README.md and docs/, also those that make test leaves out (18 minutes)
	$(PYTEST) tests/unit/test_docs_blocks.py tests/unit/security/test_plugins.py tests/integration/docs \
		tests/integration/spark/test_docs.py tests/integration/spark/test_queries.py \
		tests/integration/spark/test_typed.py tests/integration/spark/test_connect.py

exactly-once: install java ## kill a Spark query that counts in transactions, and brokers, 50 times; writes tests/exactly_once/RESULTS.md (half an hour; resumes)
	$(BIN)/python -m tests.exactly_once --folder .cache/exactly-once --results tests/exactly_once/RESULTS.md $(EXACTLY_ONCE_ARGS)

console: $(VENV)/.browser ## time the console on 200,000 partitions, and use it in headless Chromium; writes tests/console/*.md and docs/console/ (10 minutes)
	@sh tools/find-chromium.sh
	$(BIN)/python -m tests.console --results tests/console/RESULTS.md
	$(BIN)/python -m tests.console.flows --results tests/console/BROWSER.md --pictures docs/console

drill: $(VENV)/.browser java ## make four faults on three brokers and mend them with the console; writes tests/console/DRILL.md, docs/console/ (5 minutes)
	@sh tools/find-chromium.sh
	$(BIN)/python -m tests.console.drill --results tests/console/DRILL.md

console-kafka: $(VENV)/.browser java ## use the console on Apache Kafka in headless Chromium; writes tests/console/KAFKA.md (5 minutes)
	@sh tools/find-chromium.sh
	$(BIN)/python -m tests.console.flows --kafka --results tests/console/KAFKA.md

check: $(VENV)/.lint ## check lint, format and types, of the tests too (half a minute)
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --check --quiet . || { echo "make: run $(BIN)/ruff format to lay the files out" >&2; exit 1; }
	@$(BIN)/mypy --no-error-summary
	@echo "make: lint, format and types are clean"

lint: check

# Lines and branches together, in percent. A change may raise these floors, but not lower them.
COVERAGE_FLOORS := wire:97 log:90 client/core:90
COVERED := $(addprefix tests/unit/,wire log client) \
	$(addprefix tests/property/test_,$(addsuffix .py,codecs fast_fetch_codec fast_produce_codec framing log_append log_model \
	membership producer_model records replica_plan request_batches row_batches speedups validation))

coverage: $(VENV)/.coverage ## branch coverage of wire, log and client/core by unit and property tests, each with a floor
	@mkdir -p .cache
	@COVERAGE_FILE=.cache/coverage PYLOGD_TEST_INSTALLED=1 $(BIN)/coverage run $(BIN)/pytest -q $(COVERED)
	@for part in $(COVERAGE_FLOORS); do \
		COVERAGE_FILE=.cache/coverage $(BIN)/coverage report --skip-covered --show-missing \
			--include="*/pylogd/$${part%:*}/*" --fail-under="$${part#*:}" || failed=1; \
	done; test -z "$$failed"

fuzz: $(VENV)/.fuzz ## coverage-guided fuzzing of frames, batches and messages (a minute; FUZZ_ARGS="--seconds 3600 --keep")
	$(BIN)/python -m tests.fuzz $(FUZZ_ARGS)

fuzz-compiled: install ## hostile input and odd objects to all compiled functions under AddressSanitizer and UBSan, compared with Python (20 seconds; FUZZ_ARGS="--seconds 3600")
	$(BIN)/python -m tests.fuzz.compiled $(FUZZ_ARGS)

acls: install ## compare decisions by 100,000 random sets of ACLs with a plain oracle (a minute)
	PYLOGD_ACL_SETS=100000 $(PYTEST) tests/property/test_acl_rules.py

fuzz-requests: install ## well-formed extreme requests beside a client that must not notice; writes tests/extreme/RESULTS.md (2 minutes; EXTREME_ARGS="--seconds 3600")
	$(BIN)/python -m tests.extreme --results tests/extreme/RESULTS.md $(EXTREME_ARGS)

held: install ## how long the largest requests of every API hold a broker; writes tests/extreme/HELD.md (5 minutes)
	$(BIN)/python -m tests.extreme.held --results tests/extreme/HELD.md $(HELD_ARGS)

alerts: install java promtool ## fail brokers, a mirror and the audit in many ways under a real Prometheus, which fires the alerts of etc/; writes tests/alerts/RESULTS.md (20 minutes; ALERTS_ARGS="--of mirror --only killed")
	$(BIN)/python -m tests.alerts --results tests/alerts/RESULTS.md $(ALERTS_ARGS)

panels: install java promtool ## ask a real Prometheus for each panel of the dashboard and each metric, of three brokers at work; writes tests/alerts/PANELS.md (2 minutes)
	$(BIN)/python -m tests.alerts.panels --results tests/alerts/PANELS.md $(PANELS_ARGS)

scale: install ## simulate clusters of 10 to 2,000 brokers that lose brokers, a rack, or ZooKeeper; writes tests/scale/RESULTS.md (a quarter of an hour of processor time, 3 GB; SCALE_ARGS="--brokers 10 67": seconds)
	$(BIN)/python -m tests.scale --results tests/scale/RESULTS.md $(SCALE_ARGS)

strangers: install ## crowds of hostile connections beside clients that must not notice; writes tests/strangers/RESULTS.md (10 minutes)
	$(BIN)/python -m tests.strangers --results tests/strangers/RESULTS.md $(STRANGERS_ARGS)

conformance: install ## other projects' clients and suites; writes conformance/RESULTS.md (an hour; CONFORMANCE_ARGS="--only secure")
	$(BIN)/python -m conformance.run $(CONFORMANCE_ARGS)

bench: $(VENV)/.bench ## compare with other brokers, which are downloaded; writes bench/RESULTS.md (3 hours; BENCH_ARGS="--minutes 30": the most important groups first; --quick: 40 minutes)
	$(BIN)/python -m bench $(BENCH_ARGS)

bench-micro: $(VENV)/.bench ## time codec, log and sender alone, and compare with bench/micro.json
	$(BIN)/python -m bench.micro $(BENCH_ARGS)

conformance-metrics: install ## lag of groups beside Kafka's and kadm's, and metrics that three clients push; writes conformance/METRICS.md (2 minutes)
	$(BIN)/python -m conformance.metrics

conformance-spark: install java ## compare Spark's own Kafka source with pylogd's; writes conformance/SPARK.md
	$(BIN)/python -m conformance.spark_source

bench-spark: install java ## time Spark reading through both sources; writes bench/SPARK.md and bench/spark.json
	$(BIN)/python -m bench.spark $(BENCH_ARGS)

bench-mirror: $(VENV)/.bench java ## copy with one worker and with MirrorMaker 2, in turns; writes bench/MIRROR.md and bench/mirror.json (6 minutes)
	$(BIN)/python -m bench.mirror $(BENCH_ARGS)

bench-end-to-end: $(VENV)/.bench java ## time events from a producer's send to a row that a query sees; writes bench/END_TO_END.md (25 minutes; BENCH_ARGS="--rates 1000 --loaders follow": 4)
	$(BIN)/python -m bench.end_to_end --write $(BENCH_ARGS)

bench-smoke: $(VENV)/.bench ## compare with the bare ceiling; writes bench/SMOKE.md and bench/smoke.json
	$(BIN)/python -m bench.smoke $(BENCH_ARGS)

bench-cluster: $(VENV)/.bench java ## time acks=all, a follower, failover and idle brokers; writes bench/CLUSTER.md (15 minutes)
	$(BIN)/python -m bench.cluster $(BENCH_ARGS)

bench-clients: $(VENV)/.bench ## compare Python clients; writes bench/CLIENTS.md and bench/clients.json
	$(BIN)/python -m bench.clients $(BENCH_ARGS)

bench-quotas: $(VENV)/.bench java ## whether quotas hold, and what other clients notice; writes bench/QUOTAS.md (14 minutes; BENCH_ARGS="--seconds 10 --pairs 2": 6)
	$(BIN)/python -m bench.quotas $(BENCH_ARGS)

freeze: $(VENV)/.bench ## as root: freeze and slow a disk below a running broker; fails if anything acknowledged is lost; writes bench/ISOLATION.md (16 minutes; BENCH_ARGS="--pairs 2": 11; "--pairs 1 --seconds 4 --slow-seconds 0": 1)
	$(BIN)/python -m bench.isolation --write $(BENCH_ARGS)

bench-tls: $(VENV)/.bench ## compare SSL and SASL_SSL with Apache Kafka's, and with openssl speed; writes bench/TLS.md, whose notes stay (at most 12 minutes)
	$(BIN)/python -m bench.tls --write $(BENCH_ARGS)

bench-partitions: install ## what 1,000 and 10,000 idle partitions cost; writes bench/PARTITIONS.md (15 minutes; BENCH_ARGS="--partitions 1000 --rounds 1": 1)
	$(BIN)/python -m bench.partitions --write $(BENCH_ARGS)

bench-transactions: $(VENV)/.bench java ## compare transactions with Apache Kafka's; writes bench/TRANSACTIONS.md (35 minutes; BENCH_ARGS="--only 'one broker: Java' --pairs 3": 4)
	$(BIN)/python -m bench.transactions $(BENCH_ARGS)

bench-kuaishou: $(VENV)/.bench java ## Kuaishou's experiments with memory and disk limits (root); writes bench/KUAISHOU.md (55 minutes; BENCH_ARGS=--quick: 7)
	$(BIN)/python -m bench.kuaishou $(BENCH_ARGS)

container: install ## as root: build the container image from Debian's packages, measure and run it; writes tests/packages/CONTAINER.md (5 minutes)
	$(BIN)/python -m tests.packages.container --results tests/packages/CONTAINER.md

compose: install java ## as root: run the services of the compose file in namespaces, without a container engine; writes tests/packages/COMPOSE.md (2 minutes)
	$(BIN)/python -m tests.packages.compose --results tests/packages/COMPOSE.md

debian: install ## as root: build the Debian package twice, use it in a booted Debian; writes tests/packages/DEBIAN.md (8 minutes)
	$(BIN)/python -m tests.packages.debian --results tests/packages/DEBIAN.md

first-minutes: install ## as root: type the README's steps in a new Debian; writes tests/packages/FIRST_MINUTES.md (6 minutes)
	$(BIN)/python -m tests.packages.first_minutes --results tests/packages/FIRST_MINUTES.md

upgrade: install java ## upgrade a cluster under load from an earlier commit and back; writes tests/packages/UPGRADE.md (5 minutes; UPGRADE_ARGS="--old COMMIT")
	$(BIN)/python -m tests.packages.upgrade --results tests/packages/UPGRADE.md $(UPGRADE_ARGS)

release: $(VENV)/.release ## build what a release has into dist/release: wheels, source, SBOM, checksums; RELEASE_KEY=FILE signs them
	@sh packages/release.sh $(BIN)/python dist/release $(RELEASE_KEY)

reproducible: $(VENV)/.release ## build a release twice, in different places, and compare the files (2 minutes)
	@sh packages/reproducible.sh $(BIN)/python

zookeeper-package: $(BIN)/python ## build the wheel of pylogd-zookeeper into dist/ (needs mvn)
	sh packages/zookeeper/build.sh $(BIN)/python dist

helm: ## check the Helm chart (needs helm, or go, which builds it)
	@sh packages/helm/check.sh

clean: ## remove .venv and everything that was built
	rm -rf $(VENV) build dist *.egg-info .tox .pytest_cache .mypy_cache .ruff_cache .hypothesis .cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# `make help` lists what there is.
.DEFAULT_GOAL := help
.PHONY: $(shell awk -F: '/^[a-z-]+:/ {print $$1}' Makefile)
MAKEFLAGS += --no-print-directory
BIN := .venv/bin
# Tests start hundreds of processes: without bytecode files each would compile the package again.
unexport PYTHONDONTWRITEBYTECODE
SECONDS ?= 120
MINUTES ?= 5

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' Makefile

setup: ## create .venv with .venv/bin/suwi from requirements.lock
	@tools/setup.sh

check: setup ## format, lint, types, import layers, task owners, sizes
	@failed=; \
	for tool in "ruff format --check ." "ruff check ." mypy "lint-imports --no-logo" \
		"python tools/check_tasks.py" "python tools/check_sizes.py"; do \
		echo "== $$tool"; $(BIN)/$$tool || failed=yes; \
	done; \
	[ -z "$$failed" ]

format: setup ## let ruff format the code and order its imports
	@$(BIN)/ruff check --quiet --select I --fix . && $(BIN)/ruff format .

# Six at a time on two cores: tests wait for brokers, clients and time limits as long as they compute. Those of
# Spark have a run of their own, at the same time, as every process of theirs starts a session.
WITHOUT_SPARK := --dist worksteal --ignore=tests/spark --ignore=tests/browser
WITH_SPARK := --dist worksteal tests/spark
test: setup ## the tests, several at a time; HYPOTHESIS_PROFILE=thorough for many more examples
	@tools/run_tests.sh $(BIN)/python -n 4 $(WITHOUT_SPARK) -m "not slow" -- -n 2 $(WITH_SPARK) -m "not slow"

test-browser: setup ## the console in a real browser: Debian's chromium, or CHROMIUM=/path/to/it; skipped without
	@tools/test_browser.sh

test-long: setup ## the slow tests: all further seeds, mutants, the demo, kills around Spark
	@tools/run_tests.sh $(BIN)/python -n 2 $(WITHOUT_SPARK) -m slow -- -n 2 $(WITH_SPARK) -m slow

test-newest: ## most tests without Spark with the newest installed Python, in .venv-newest; NEWEST=/path/to/python
	@tools/test_newest.sh

test-oldest: ## the Spark tests with the oldest PySpark supported, in .venv-oldest
	@tools/test_oldest.sh

sim: setup ## mutants, then clusters with faults; options MINUTES=60 FROM=0 JOBS=2
	@$(BIN)/python -m simulation --mutants --jobs $(or $(JOBS),1)
	@$(BIN)/python -m simulation --minutes $(MINUTES) --from $(or $(FROM),0) --jobs $(or $(JOBS),1)

demo: setup ## three brokers, Spark, a lake table, and a broker killed in the middle
	@$(BIN)/python demo/demo.py

tour: setup ## one broker in detail: its files, a crash, a recovery
	@$(BIN)/python demo/tour.py

lab: setup ## play all scenarios of the lab and write them as a web site to build/lab
	@$(BIN)/suwi lab export build/lab

fuzz: setup ## hostile peers against a broker; options SECONDS=600 SEED=7
	@$(BIN)/python -m fuzz --seconds $(SECONDS) $(if $(SEED),--seed $(SEED))

chaos: setup ## 50 kills around a Spark pipeline into a Delta table (needs Java), no other faults: see chaos-cluster; KILLS=100 BROKERS=3 SEED=7 SINK=topic
	@$(BIN)/python -m chaos $(if $(KILLS),--kills $(KILLS)) --brokers $(or $(BROKERS),1) --sink $(or $(SINK),table) \
		$(if $(SEED),--seed $(SEED))

chaos-brokers: setup ## faults of three brokers under four idempotent writers; FAULTS=100 SEED=7, MINUTES=20 at most
	@$(BIN)/python -m chaos.broker_faults --faults $(or $(FAULTS),100) $(if $(SEED),--seed $(SEED)) \
		$(if $(filter-out file,$(origin MINUTES)),--minutes $(MINUTES))

chaos-groups: setup ## members of real clients and coordinators are killed while records flow; MINUTES=5 SEED=7
	@$(BIN)/python -m chaos.groups --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))

chaos-cluster: setup ## faults of broker and ZooKeeper processes (needs Java); MINUTES=5 SEED=7 KINDS="kill,pause" SPARK=1
	@$(BIN)/python -m chaos.cluster --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) \
		$(if $(KINDS),--kinds "$(KINDS)") $(if $(SPARK),--spark)

chaos-copiers: setup ## transactional copiers, their coordinators and leaders are killed (needs Java); MINUTES=5 SEED=7
	@$(BIN)/python -m chaos.cluster --copiers --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))

bench: setup ## measure against Apache Kafka; ONLY=stalls QUICK=1, ONLY=race AGAINST=../old/src
	@$(BIN)/python -m bench $(ONLY:%=--only %) $(if $(QUICK),--quick) \
		$(if $(AGAINST),--against $(AGAINST))

compat: setup ## Apache Kafka's own tools and classes (needs Java and Maven) against Suwi
	@$(BIN)/python -m pytest compat --timeout=600

docs: setup ## regenerate the tables of keys and options in docs/, and the types in console/src/api.ts
	@$(BIN)/python tools/config_docs.py
	@$(BIN)/python tools/spark_docs.py
	@$(BIN)/python tools/console_types.py

lock: ## regenerate requirements.lock from the ranges in pyproject.toml
	@tools/lock.sh

clean: ## remove caches and built files; .venv stays
	@rm -rf build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	@find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

# The only entry points that people and CI use. `make help` lists them.
#
# Everything lives in .venv; a stamp file per set of packages makes repeated calls fast. A set is installed
# again when pyproject.toml or its pins change.

VENV    := .venv
BIN     := $(VENV)/bin
PYTHON  := $(BIN)/python
PIP     := $(PYTHON) -m pip install --quiet --disable-pip-version-check

DATA    ?= ./data
ROUNDS  ?= 50
WORKERS ?= 3
CASES   ?= 1000000
LOGS    ?= 100
RECORDS ?= 1000
SEEDS   ?= 1000
MINUTES ?= 10
KILLS   ?= 10
SECONDS_AWAY ?= 60
QUICK   ?=
ARGS    ?=

.DEFAULT_GOAL := help
.PHONY: help run test test-long packages check format bench bench-spark bench-patterns compare exactly-once outage crash failover chaos chaos-everything memory crowd attacks partitions weight recovery fuzz fuzz-logs simulate simulate-campaign simulate-mutations docs clean

help: ## print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# ---------------------------------------------------------------- the environment

$(VENV)/.made: scripts/make-venv
	@scripts/make-venv $(VENV)
	@touch $@

$(VENV)/.run: $(VENV)/.made pyproject.toml requirements/run.txt
	@echo "installing what a broker needs into $(VENV)" >&2
	@$(PIP) -c requirements/run.txt -e .
	@touch $@

$(VENV)/.dev: $(VENV)/.run requirements/dev.txt
	@echo "installing what the tests need into $(VENV)" >&2
	@$(PIP) -c requirements/dev.txt -e '.[dev]'
	@touch $@

$(VENV)/.bench: $(VENV)/.run requirements/bench.txt
	@echo "installing what the benchmarks need into $(VENV)" >&2
	@$(PIP) -c requirements/bench.txt -e '.[bench]'
	@touch $@

# ---------------------------------------------------------------- run and test

run: $(VENV)/.run ## start one broker on port 7440 (DATA=./data, ARGS=... for more flags)
	@STENTOR_LOG_LEVEL=$${STENTOR_LOG_LEVEL:-warning} exec $(BIN)/stentor serve --data "$(DATA)" $(ARGS)

test: check packages ## run everything that must pass: check, then all tests (WORKERS=3 processes, ARGS=... for pytest)
	@$(PYTHON) -m pytest -m "not long" -n $(WORKERS) --dist loadfile $(ARGS)

test-long: $(VENV)/.dev packages ## run the tests that take minutes each: killed Spark drivers, a Spark cluster, the documents' commands
	@$(PIP) -c requirements/dev.txt 'pyspark[pipelines]'
	@$(PYTHON) -m pytest -m long $(ARGS)

packages: ## as root, install Debian packages that cluster tests need (HAProxy, nginx, ip, iptables, strace, faketime)
	@scripts/debian-packages

check: $(VENV)/.dev ## check lint, format, types and layers
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check --quiet || { echo "run 'make format' to format these files" >&2; $(BIN)/ruff format --check; }
	@$(BIN)/mypy
	@$(BIN)/lint-imports

format: $(VENV)/.dev ## format the code and fix what ruff can fix
	@$(BIN)/ruff check --fix --quiet || true
	@$(BIN)/ruff format

simulate: $(VENV)/.dev ## run SEEDS=1000 clusters of real brokers and clients in virtual time, in which everything fails (ARGS="--from N")
	@$(PYTHON) -m tests.virtual --seeds $(SEEDS) $(ARGS)

simulate-campaign: $(VENV)/.dev ## simulate seeds that nobody has run yet, for MINUTES=10; continues where the last one stopped
	@$(PYTHON) -m tests.virtual --campaign --minutes $(MINUTES) $(ARGS)

simulate-mutations: $(VENV)/.dev ## switch every safety rule off in turn: some simulated run must notice (ARGS="NAME --search 300")
	@$(PYTHON) -m tests.virtual.noticed $(ARGS)

docs: $(VENV)/.dev ## write the generated references in docs/ and check the documents
	@$(PYTHON) -m stentor.cli.reference --write docs
	@$(PYTHON) scripts/make_docs.py
	@$(PYTHON) -m pytest tests/docs

# ---------------------------------------------------------------- measure

bench: $(VENV)/.bench ## compare with the peers (QUICK=1: at most three minutes); as root it installs Redis
	@scripts/debian-packages bench
	@$(PYTHON) -m bench $(if $(QUICK),--quick) $(ARGS)

compare: $(VENV)/.bench ## compare this tree with OLD=<commit>: CPU per message of fixed works, 20 interleaved rounds (ARGS="--pairs N --only WORK")
	@$(PYTHON) -m bench.versions $(OLD) $(ARGS)

crash: $(VENV)/.bench ## kill -9 a broker while publishing, ROUNDS=50 times; check that nothing acknowledged is lost
	@$(PYTHON) -m bench.crash --rounds $(ROUNDS) $(ARGS)

bench-spark: $(VENV)/.bench $(VENV)/.dev ## compare topics as Spark tables with Parquet and with what Spark allows (ARGS="--rows N")
	@$(PYTHON) -m bench.spark $(ARGS)

bench-patterns: $(VENV)/.bench $(VENV)/.dev ## compare tables and queues with Redis, NATS, RabbitMQ and Celery, measure workers (QUICK=1: a few minutes; ARGS="--only clone"); as root it installs Redis and RabbitMQ
	@scripts/debian-packages bench
	@$(PYTHON) -m bench.patterns $(if $(QUICK),--quick) $(ARGS)

exactly-once: $(VENV)/.dev ## kill a Spark driver KILLS=10 times, and a broker in between; check that every row comes out once
	@$(PYTHON) -m tests.spark.exactly_once --kills $(KILLS) $(ARGS)

outage: $(VENV)/.dev ## stop all of etcd for SECONDS_AWAY=60, under load
	@$(PYTHON) -m tests.cluster.outage --seconds $(SECONDS_AWAY) $(ARGS)

failover: $(VENV)/.bench $(VENV)/.dev ## measure how long publishing stops when a broker fails (QUICK=1: at most four minutes)
	@$(PYTHON) -m bench.failover $(if $(QUICK),--quick) $(ARGS)

chaos: $(VENV)/.dev ## break a real cluster at random for MINUTES=10; check that nothing acknowledged is lost
	@$(PYTHON) -m tests.cluster.chaos --minutes $(MINUTES) $(ARGS)

chaos-everything: $(VENV)/.dev ## kill, stop and wake brokers and workers for MINUTES=10 while groups, queues, tables, watches and requests are at work
	@$(PYTHON) -m tests.cluster.everything --minutes $(MINUTES) $(ARGS)

memory: $(VENV)/.bench ## measure a broker's memory while 5 GB are written and subscribers are slow
	@$(PYTHON) -m bench.memory $(ARGS)

crowd: $(VENV)/.bench ## measure a broker's memory and a client's latency beside 2,200 strangers that never finish a request
	@$(PYTHON) -m bench.crowd $(ARGS)

attacks: $(VENV)/.bench ## measure how long a stranger's valid requests hold a broker's loop (ARGS="'NAME' --rounds N")
	@$(PYTHON) -m bench.attacks $(ARGS)

partitions: $(VENV)/.bench $(VENV)/.dev ## create, list, scrape and restart 1,000 to 10,000 partitions (ARGS="--brokers 3": with a failover)
	@$(PYTHON) -m bench.partitions $(ARGS)

weight: $(VENV)/.made ## measure the size of installations and the cost of starting them (ARGS="--beside TREE")
	@$(PYTHON) -m bench.weight $(ARGS)

recovery: $(VENV)/.bench ## measure the time until a broker is ready after a crash, with 10 GB of log
	@$(PYTHON) -m bench.recovery $(ARGS)

fuzz: $(VENV)/.dev ## feed CASES=1000000 mutated frames and batches to every decoder
	@$(PYTHON) -m tests.hostile.fuzz --cases $(CASES) $(ARGS)

fuzz-logs: $(VENV)/.dev ## fill LOGS=100 logs of every kind with RECORDS=1000 generated records; compact, restart, join and compare them
	@$(PYTHON) -m tests.hostile.fuzz_logs --logs $(LOGS) --records $(RECORDS) $(ARGS)

clean: ## remove files of make and Python, but never the data
	@rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	@find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +

# Everything a person or a machine does with this tree, one target each: `make help`.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

# The headers of NVML warn of each function that a newer one replaces; nobody here calls them.
export CGO_CFLAGS ?= -O2 -g -Wno-deprecated-declarations

VERSION := $(shell cat VERSION)

# With a C compiler troupe can talk to NVML; without one it is built all the same and
# sees no GPU. `-z lazy` lets a binary start beside a driver that lacks a function.
CC_FOUND := $(shell command -v $(or $(CC),gcc) 2>/dev/null)
ifneq ($(CC_FOUND),)
BUILD_ENV := CGO_ENABLED=1
BUILD_TAGS :=
EXTLD := -extldflags=-Wl,-z,lazy
else
BUILD_ENV := CGO_ENABLED=0
BUILD_TAGS := -tags nonvml
EXTLD :=
endif

TRIALS ?= $(or $(BENCH_TRIALS),30)

.PHONY: help
help: ## Show this list
	@echo "make TARGET. The ones that people use:"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo "TROUPE_PYTHON     a Python that has torch, numpy and scikit-learn (else one is installed)"
	@echo "TROUPE_ENV_CACHE  where environments and tools are kept (default ~/.cache/troupe)"

##@ Use

.PHONY: build
build: bin/troupe ## Build bin/troupe and bin/troupe-shim

# Always asked, because go knows better than make what a binary depends on and does
# nothing when it is up to date. -buildvcs=false: the version is in VERSION, and a
# checkout that git distrusts must build too.
GO_BUILD := go build -buildvcs=false -trimpath

# Static, so that it runs on any libc, and small, because one runs for each allocation.
.PHONY: bin/troupe-shim
bin/troupe-shim:
	@mkdir -p bin
	@CGO_ENABLED=0 $(GO_BUILD) -ldflags "-s -w" -o $@ ./cmd/troupe-shim
	@cmp -s $@ cmd/troupe/embed/troupe-shim || cp $@ cmd/troupe/embed/troupe-shim

.PHONY: bin/troupe
bin/troupe: bin/troupe-shim
	@$(BUILD_ENV) $(GO_BUILD) $(BUILD_TAGS) \
		-ldflags "-s -w -X main.version=$(VERSION) $(EXTLD)" -o $@ ./cmd/troupe

.PHONY: quickstart
quickstart: build ## Train on four ranks, kill one, and prove that the run recovers exactly
	@python=$$(test/scripts/python-env.sh run); "$$python" examples/quickstart/quickstart.py

.PHONY: env
env: ## Make the Python environment of the tests, and print its interpreter
	@test/scripts/python-env.sh test

##@ Check

.PHONY: test
test: build ## Run all tests, Go with the race detector and Python (about a quarter of an hour)
	@test/scripts/test.sh full

.PHONY: test-fast
test-fast: build ## Run the short tests without the race detector and without torch (under three minutes)
	@test/scripts/test.sh fast

.PHONY: test-go
test-go: build ## Run the Go tests alone
	@test/scripts/test.sh go

.PHONY: test-python
test-python: build ## Run the Python tests alone
	@test/scripts/test.sh python

.PHONY: test-page
test-page: build ## Look at the pages of a head in Chromium, both colour schemes, wide and narrow, with axe
	@test/scripts/page.sh

.PHONY: lint
lint: ## Run every linter
	@test/scripts/lint.sh check

.PHONY: fmt
fmt: ## Format Go and Python
	@test/scripts/lint.sh fmt

.PHONY: soak
soak: build ## Run the simulated cluster on many seeds, fuzz, and kill for long: make soak SEEDS=1000 DURATION=10m FUZZ=60s KILLS=1000
	@TROUPE_SOAK_SEEDS=$(or $(SEEDS),1000) TROUPE_SOAK_DURATION=$(or $(DURATION),10m) \
		go test -count=1 -timeout 24h -run 'Soak|Simulated' ./test/cluster/...
	@go test -count=1 -timeout 24h -run AnyTraceOnAnyCluster ./head/simulate -rapid.checks=$(or $(SEEDS),1000)
	@test/scripts/fuzz.sh $(or $(FUZZ),60s)
	@python=$$(test/scripts/python-env.sh test); cd sdk/python && "$$python" -m pytest -q -m soak
	@python=$$(test/scripts/python-env.sh test); "$$python" test/kills/kills.py --kills $(or $(KILLS),1000)

.PHONY: fuzz
fuzz: ## Run every fuzzer for a while each: make fuzz FUZZ=60s
	@test/scripts/fuzz.sh $(or $(FUZZ),60s)

.PHONY: mutate
mutate: ## Plant known bugs in the protocols and demand that each is caught (about half an hour)
	@go run ./test/mutate test/cluster/mutants.json

##@ Measure

BENCHES := recovery memory run checkpoint sched pg jobs

.PHONY: bench
bench: build ## Run all benchmarks and write bench/results/table.md (about 45 minutes)
	@rm -rf bench/results; bad=0; \
		for name in $(BENCHES); do $(MAKE) bench-$$name || bad=1; done; \
		python=$$(test/scripts/python-env.sh run); "$$python" bench/table.py $(BENCHES) || bad=1; exit $$bad

.PHONY: bench-recovery
bench-recovery: build ## Time start and recovery against torchrun and Ray, lost nodes too, and count what kills leave
	@python=$$(test/scripts/python-env.sh run); "$$python" bench/recovery/bench.py --trials $(TRIALS)

.PHONY: bench-memory
bench-memory: build ## Weigh head, agent, shim and binary
	@python=$$(test/scripts/python-env.sh run); "$$python" bench/memory/bench.py

.PHONY: bench-run
bench-run: build ## Time a run of four ranks of `true`, end to end
	@python=$$(test/scripts/python-env.sh run); "$$python" bench/run/bench.py --trials $(TRIALS)

.PHONY: bench-sched
bench-sched: ## Time decisions on full clusters on one core, and place the openb traces
	@python=$$(test/scripts/python-env.sh run); "$$python" bench/sched/bench.py

.PHONY: bench-checkpoint
bench-checkpoint: build ## Time asynchronous saves against a copy, and synchronous ones against torch.save
	@python=$$(test/scripts/python-env.sh run); BENCH_TRIALS=$(or $(BENCH_TRIALS),10) "$$python" bench/checkpoint/bench.py

.PHONY: bench-pg
bench-pg: build ## Time placement groups through the head, made durable, beside Ray
	@python=$$(test/scripts/python-env.sh run); "$$python" bench/pg/bench.py

.PHONY: bench-jobs
bench-jobs: build ## Time `true` on two nodes, alone and a thousand at once, beside Slurm if it is installed
	@python=$$(test/scripts/python-env.sh run); "$$python" bench/jobs/bench.py --trials $(TRIALS)

##@ Tidy

.PHONY: clean
clean: ## Remove what was built here (not the cache of environments and tools)
	rm -rf bin .cache/reports .quickstart cmd/troupe/embed/troupe-shim bench/results

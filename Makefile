# `make help` lists the targets. On a fresh machine `make serve` and `make test` do everything; they need Go, Python with
# pip and venv, make, git and a C compiler, and put what they fetch under .deps/ and bin/.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
MODELS ?= examples/models
ARGS ?=
FUZZTIME ?= 1m
BENCHTIME ?= 1s
SOAK ?= 1000000

# Without a home directory Go has no place for its caches.
ifeq ($(HOME),)
export GOCACHE ?= $(CURDIR)/.deps/go-build
export GOPATH ?= $(CURDIR)/.deps/go
endif

# What tests and programs started from here find by these names.
export NEREID_ONNXRUNTIME_LIBRARY ?= $(CURDIR)/.deps/onnxruntime/libonnxruntime.so
export NEREID_REQUIRE_ONNXRUNTIME ?= 1
export NEREID_PYTHON ?= $(CURDIR)/.deps/venv/bin/python
export NEREID_BIN ?= $(CURDIR)/bin/nereid

MODULES := libs proto services/gateway services/registry services/scheduler services/worker cmd test
# Everything but the tests that need a built program.
UNITS = $$(go list work | grep -v '/test/e2e')
PROGRAMS = $(wildcard cmd/nereid) $(wildcard services/*/cmd/*)

GOLANGCI_LINT_VERSION := v2.15.0
GOFUMPT_VERSION := v0.12.0
GOLANGCI_LINT := $(CURDIR)/bin/tools/golangci-lint-$(GOLANGCI_LINT_VERSION)
GOFUMPT := $(CURDIR)/bin/tools/gofumpt-$(GOFUMPT_VERSION)

# $(call in-modules,COMMAND) runs COMMAND in every module's directory and fails if it failed in one of them.
in-modules = @failed=; for module in $(MODULES); do (cd $$module && $(1)) || failed+=" $$module"; done; \
	[ -z "$$failed" ] || { echo "failed in:$$failed" >&2; exit 1; }

.PHONY: help
help: ## List the targets
	@awk 'BEGIN {FS = ":.*## "} /^[a-z0-9-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: deps
deps: check-machine ## Fetch ONNX Runtime and the Python clients into .deps/, pinned by hash
	@$(PYTHON) deps/fetch.py

.PHONY: check-machine
check-machine:
	@PYTHON="$(PYTHON)" deps/check

.PHONY: serve
serve: deps build ## Serve the models in examples/models; ARGS="--flag value" passes more, MODELS names another directory
	@$(NEREID_BIN) serve --model-repository $(MODELS) $(ARGS)

.PHONY: build
build: check-machine ## Build the programs into bin/
	@mkdir -p bin
	go build -o bin/ $(addprefix ./,$(PROGRAMS))

.PHONY: test
test: deps arch unit e2e ## Run every test: the units of all modules, then end to end with the real clients

.PHONY: unit
unit: deps
	go test -shuffle=on $(UNITS)

.PHONY: e2e
e2e: deps build ## Run the end-to-end tests: the built program and the real clients
	go test -count=1 ./test/e2e/...

.PHONY: race
race: deps ## Run the unit tests under the race detector
	go test -race -shuffle=on $(UNITS)

.PHONY: generate
generate: ## Write the generated code and pages again
	go generate work

.PHONY: fmt
fmt: $(GOFUMPT) ## Format the Go code
	$(GOFUMPT) -w $(MODULES)

.PHONY: fmt-check
fmt-check: $(GOFUMPT)
	@unformatted=$$($(GOFUMPT) -l $(MODULES)); [ -z "$$unformatted" ] || { echo "run make fmt for:"; echo "$$unformatted"; exit 1; }

.PHONY: lint
lint: $(GOLANGCI_LINT) ## Run the linters on every module
	$(call in-modules,$(GOLANGCI_LINT) run --config $(CURDIR)/.golangci.yml ./...)

.PHONY: arch
arch: ## Check which package may import which, and the other rules of the layout
	go test -count=1 ./test/arch/...

.PHONY: alone
alone: ## Build every module without the workspace
	$(call in-modules,GOWORK=off go build ./...)

.PHONY: tidy
tidy: ## Tidy every module
	$(call in-modules,GOWORK=off go mod tidy)

.PHONY: tidy-check
tidy-check:
	$(call in-modules,GOWORK=off go mod tidy -diff)

.PHONY: bench
bench: deps ## Run the benchmarks with allocations; BENCHTIME=1s
	go test -run '^$$' -bench . -benchmem -benchtime $(BENCHTIME) work

.PHONY: fuzz
fuzz: deps ## Fuzz every parser of foreign bytes; FUZZTIME=1m is spent on each
	@.ci/fuzz "$(FUZZTIME)"

.PHONY: soak
soak: deps build ## Flood and abuse a server for a quarter of an hour; SOAK=1000000 is the requests of each of three floods
	NEREID_SOAK=$(SOAK) go test -count=1 -v -timeout 1h -run '^TestSoak' ./test/e2e/

.PHONY: train
train: ## Train the example models again
	@$(PYTHON) deps/fetch.py --train
	@for script in examples/train/*.py; do echo "$$script"; .deps/train/bin/python $$script; done

.PHONY: lock
lock: deps ## Choose the Python packages' versions again and write their hashes
	.deps/venv/bin/python -m pip install --quiet --upgrade 'pip>=25'
	.deps/venv/bin/python deps/lock.py

.PHONY: ci
ci: ## Run what the continuous integration runs
	.ci/run

.PHONY: clean
clean: ## Remove what was built and fetched
	rm -rf bin build .deps

$(GOLANGCI_LINT):
	GOBIN=$(@D) go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_LINT_VERSION)
	@mv $(@D)/golangci-lint $@

$(GOFUMPT):
	GOBIN=$(@D) go install mvdan.cc/gofumpt@$(GOFUMPT_VERSION)
	@mv $(@D)/gofumpt $@

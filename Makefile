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
KILLS ?= 50

# Without a home directory Go has no place for its caches.
ifeq ($(HOME),)
export GOCACHE ?= $(CURDIR)/.deps/go-build
export GOPATH ?= $(CURDIR)/.deps/go
endif

# GPU=1 is for machines with GPUs of NVIDIA: ONNX Runtime is then the one that runs models on them, and on CPUs.
GPU ?=
RUNTIME := onnxruntime$(if $(GPU),-gpu)
# What tests and programs started from here find by these names.
export NEREID_ONNXRUNTIME_LIBRARY ?= $(CURDIR)/.deps/$(RUNTIME)/libonnxruntime.so
export NEREID_REQUIRE_ONNXRUNTIME ?= 1
export NEREID_PYTHON ?= $(CURDIR)/.deps/venv/bin/python
export NEREID_BIN ?= $(CURDIR)/bin/nereid

MODULES := libs libs/blob libs/policy proto python services/gateway services/registry services/scheduler services/worker cmd test
# Bounds the tests of one package that hang: a slow machine stays far below it, and Go's own 10 minutes does not.
TEST := go test -timeout 30m
# Everything but the tests that need a built program.
UNITS = $$(go list work | grep -v '/test/\(e2e\|cluster\)')
PROGRAMS = $(wildcard cmd/nereid) $(wildcard services/*/cmd/*)

VERSITYGW_VERSION := v1.8.0
VERSITYGW := $(CURDIR)/bin/tools/versitygw-$(VERSITYGW_VERSION)
FAKE_GCS_VERSION := v1.52.2
FAKE_GCS := $(CURDIR)/bin/tools/fake-gcs-server-$(FAKE_GCS_VERSION)
AZURITE := $(CURDIR)/.deps/azurite/node_modules/azurite/dist/src/blob/main.js
GRPCURL_VERSION := v1.9.3
GRPCURL := $(CURDIR)/bin/tools/grpcurl-$(GRPCURL_VERSION)
GOLANGCI_LINT_VERSION := v2.15.0
GOFUMPT_VERSION := v0.12.0
GREMLINS_VERSION := v0.6.0
GOLANGCI_LINT := $(CURDIR)/bin/tools/golangci-lint-$(GOLANGCI_LINT_VERSION)
GOFUMPT := $(CURDIR)/bin/tools/gofumpt-$(GOFUMPT_VERSION)
GREMLINS := $(CURDIR)/bin/tools/gremlins-$(GREMLINS_VERSION)
# The packages of which a test must notice 85 of 100 mutations, and the minutes in which so many of these are tried as can be.
MINUTES ?= 60
MUTATED ?= libs/infer libs/tensor libs/protoscan libs/diagnostics libs/modelconfig libs/bus libs/blob libs/policy \
	services/scheduler/core services/scheduler/internal/dispatch services/worker/internal/batches services/registry/core/rollout \
	services/registry/core/publish services/registry/core/place services/gateway/internal/path services/gateway/internal/tenants \
	services/gateway/internal/requests

# $(call in-modules,COMMAND) runs COMMAND in every module's directory and fails if it failed in one of them.
in-modules = @failed=; for module in $(MODULES); do (cd $$module && $(1)) || failed+=" $$module"; done; \
	[ -z "$$failed" ] || { echo "failed in:$$failed" >&2; exit 1; }

.PHONY: help
help: ## List the targets
	@awk 'BEGIN {FS = ":.*## "} /^[a-z0-9-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: deps
deps: check-machine ## Fetch ONNX Runtime and the Python clients into .deps/, pinned by hash; GPU=1 fetches what GPUs need, 2 GB, too
	@$(PYTHON) deps/fetch.py
	@if [ -n "$(GPU)" ]; then $(PYTHON) deps/fetch.py --gpu; fi

.PHONY: check-machine
check-machine:
	@PYTHON="$(PYTHON)" deps/check

# Fetching waits for the network while compiling takes the processor, so that they run side by side.
.PHONY: serve
serve: check-machine ## Serve the models in examples/models; ARGS="--flag value" passes more, MODELS names another directory
	@$(MAKE) --no-print-directory --jobs=2 deps nereid
	@$(NEREID_BIN) serve --model-repository $(MODELS) $(ARGS)

.PHONY: nereid
nereid: check-machine ## Build bin/nereid alone, the program that holds all services
	@mkdir -p bin
	@echo "build: compiling bin/nereid"; begin=$$SECONDS; go build -o bin/ ./cmd/nereid; \
		echo "build: bin/nereid took $$((SECONDS - begin)) s"

.PHONY: build
build: check-machine ## Build the programs into bin/
	@mkdir -p bin
	go build -o bin/ $(addprefix ./,$(PROGRAMS))

DIST := build/dist

# Without paths of this machine, so that every machine with these versions builds the same bytes.
.PHONY: dist
dist: deps ## Pack bin/nereid, ONNX Runtime and the Python package for machines without Go and a compiler, into build/dist
	@mkdir -p $(DIST)
	go build -trimpath -ldflags=-s -o $(DIST)/nereid ./cmd/nereid
	@$(PYTHON) deploy/dist/pack.py $(DIST)/nereid $(DIST)

.PHONY: dist-test
dist-test: dist ## Try the archive: nothing but what it holds, in an empty directory and an empty environment
	NEREID_ARCHIVE=$(CURDIR)/$(DIST) go test -count=1 -run TestArchive ./test/e2e/

.PHONY: test
test: deps arch unit python-test e2e ## Run every test: the units of all modules, then end to end with the real clients

.PHONY: unit
unit: deps
	$(TEST) -tags invariants -shuffle=on $(UNITS)

.PHONY: python-test
python-test: INTERPRETER = $(if $(filter file,$(origin PYTHON)),$(NEREID_PYTHON),$(PYTHON))
python-test: deps ## Run the tests of the Python package and of the Python models; PYTHON names another interpreter that has numpy
	cd python && $(INTERPRETER) -m unittest discover -t . -s tests
	for test in examples/models/*/test_model.py; do PYTHONPATH=python $(INTERPRETER) $$test; done

.PHONY: e2e
e2e: deps build ## Run the end-to-end tests: the built program and the real clients
	$(TEST) -count=1 ./test/e2e/...
	NEREID_KILLS=2 $(TEST) -count=1 ./test/cluster/

.PHONY: e2e-cluster
e2e-cluster: deps build ## Run the end-to-end tests over the services as processes
	NEREID_DEPLOYMENT=cluster $(TEST) -count=1 ./test/e2e/...

.PHONY: s3-test
s3-test: deps build $(VERSITYGW) ## Serve models from a real S3 server, built from its Go module
	NEREID_VERSITYGW=$(VERSITYGW) go test -count=1 -run TestModelsAreServedFromS3 ./test/e2e/

.PHONY: azure-test
azure-test: deps build $(AZURITE) ## Serve models from a real server of Azure Blob Storage, fetched with npm; needs node
	NEREID_AZURITE=$(AZURITE) go test -count=1 -run TestModelsAreServedFromAzure ./test/e2e/

.PHONY: gcs-test
gcs-test: deps build $(FAKE_GCS) ## Serve models from a server of Google Cloud Storage, built from its Go module
	NEREID_FAKE_GCS=$(FAKE_GCS) go test -count=1 -run TestModelsAreServedFromGCS ./test/e2e/

REDIS ?= redis-server

.PHONY: redis-test
redis-test: deps build ## Keep responses in a real Redis, which is killed, slow and full; needs Debian's redis-server, or REDIS=FILE
	@command -v $(REDIS) >/dev/null || { echo "there is no $(REDIS): apt-get install redis-server, or name another by REDIS=FILE" >&2; exit 1; }
	NEREID_REDIS=$$(command -v $(REDIS)) $(TEST) -count=1 ./services/gateway/internal/redis/
	NEREID_REDIS=$$(command -v $(REDIS)) $(TEST) -count=1 -run TestResponsesAreSharedByRedis ./test/e2e/

# The tests that older clients of Triton pass as the newest ones do.
OLDER := TestRealClients$$|TestClientLibrary|TestClientAPI|TestClientsShareMemory|TestRealClientsAndConnectionFlags|TestRealClientsOverTLS|TestRealClientsOfTritonsTestBackends
# Where perf_analyzer finds what machines may lack.
PERF_LIBRARIES := $(CURDIR)/build/perf_analyzer

# A client that this Python or processor has no wheel of is left out, as deps/fetch.py says, and its test says so too. As for
# serve, fetching and compiling run side by side.
.PHONY: interop-test
interop-test: OLD = $(CURDIR)/.deps/triton-2.51/bin
interop-test: deps build ## Try other clients: tritonclient 2.51, its perf_analyzer, KServe's SDK, grpcurl
	@$(MAKE) --no-print-directory --jobs=2 interop-clients $(GRPCURL)
	test/perf_analyzer/build $(PERF_LIBRARIES)
	if [ -x $(OLD)/python ]; then NEREID_PYTHON=$(OLD)/python $(TEST) -count=1 -run '$(OLDER)' ./test/e2e/; fi
	present() { if [ -x "$$1" ]; then echo "$$1"; fi; }; \
		NEREID_PERF_ANALYZER=$$(present $(OLD)/perf_analyzer) NEREID_PERF_ANALYZER_LIBRARIES=$(PERF_LIBRARIES) \
		NEREID_KSERVE_PYTHON=$$(present $(CURDIR)/.deps/kserve/bin/python) NEREID_GRPCURL=$(GRPCURL) \
		$(TEST) -count=1 -run 'TestPerfAnalyzer|TestKServeSDK|TestGRPCurl' -v ./test/e2e/

.PHONY: interop-clients
interop-clients: check-machine
	@$(PYTHON) deps/fetch.py --interop

# The libraries of test/cuda, which stand for CUDA's on machines without a GPU.
EMULATED_CUDA := $(CURDIR)/build/cuda

.PHONY: cuda-test
cuda-test: export NEREID_ONNXRUNTIME_LIBRARY = $(CURDIR)/.deps/onnxruntime-gpu/libonnxruntime.so
cuda-test: export NEREID_CUDA_LIBRARIES = $(EMULATED_CUDA)
cuda-test: export EMULATED_CUDA_STATISTICS = $(EMULATED_CUDA)/statistics
cuda-test: deps build ## Run models on an emulated GPU, by ONNX Runtime's CUDA provider (250 MB are fetched); needs no GPU
	@$(PYTHON) deps/fetch.py --provider
	test/cuda/build $(EMULATED_CUDA)
	$(TEST) -count=1 ./services/worker/internal/backend/onnxruntime/
	$(TEST) -count=1 -run GPU ./test/e2e/

.PHONY: gpu-test
gpu-test: ## Try models on a GPU of NVIDIA, for at most eight minutes; needs one with its driver, and fetches 2 GB
	@$(MAKE) --no-print-directory deps build GPU=1
	test/gpu/run

.PHONY: gpu-bundle
gpu-bundle: deps build ## Put what gpu-test needs into build/gpu, in parts of at most 48 MiB, for machines without Go and without a network
	@$(PYTHON) deps/fetch.py --provider
	test/gpu/bundle build/gpu

# PyTorch is Debian's python3-torch, or what PYTORCH_PYTHON has.
PYTORCH_PYTHON ?= /usr/bin/python3

.PHONY: hosts-test
hosts-test: deps build ## Serve models of PyTorch, TensorFlow and OpenVINO; needs Debian's python3-torch, or PYTORCH_PYTHON=FILE
	@$(PYTORCH_PYTHON) -c "import torch, numpy" || { echo "$(PYTORCH_PYTHON) has no torch: apt-get install python3-torch, or name another Python by PYTORCH_PYTHON" >&2; exit 1; }
	@$(PYTHON) deps/fetch.py --hosts
	NEREID_PYTORCH_PYTHON=$(PYTORCH_PYTHON) NEREID_TENSORFLOW_PYTHON=$(CURDIR)/.deps/hosts/bin/python NEREID_OPENVINO_PYTHON=$(CURDIR)/.deps/hosts/bin/python \
		$(TEST) -count=1 -run 'TestPyTorchModels|TestTensorFlowModels|TestOpenVINOModels' ./test/e2e/

.PHONY: race
race: deps ## Run the unit tests under the race detector
	$(TEST) -race -shuffle=on $(UNITS)

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

.PHONY: mutation
mutation: $(GREMLINS) ## Break the code in small ways and see that tests fail; MUTATED names the packages, MINUTES=60 is about how long
	@MINUTES=$(MINUTES) .ci/mutate $(GREMLINS) $(MUTATED)

.PHONY: soak
soak: deps build ## Flood and abuse a server for a quarter of an hour; SOAK=1000000 is the requests of each of three floods
	NEREID_SOAK=$(SOAK) go test -count=1 -v -timeout 1h -run '^TestSoak' ./test/e2e/

SOAK_CALLS ?= 30m

.PHONY: soak-calls
soak-calls: deps build ## Have Python models call others from eight clients, and see that memory stays flat; SOAK_CALLS=30m is how long
	NEREID_SOAK_CALLS=$(SOAK_CALLS) go test -count=1 -v -timeout 24h -run '^TestSoakCalls$$' ./test/e2e/

HOSTILE ?= 5m

.PHONY: hostile-test
hostile-test: deps build ## Attack a server in every way that its memory is bounded against, beside an honest client; HOSTILE=5m is how long, ATTACKS="names streams" which of them
	NEREID_HOSTILE=$(HOSTILE) NEREID_HOSTILE_ATTACKS="$(ATTACKS)" go test -count=1 -v -timeout 1h -run '^TestHostile$$' ./test/e2e/

.PHONY: kill-test
kill-test: deps build ## Kill every service under load and hold what happened against the promises; KILLS=50 is how often each
	NEREID_KILLS=$(KILLS) NEREID_PAUSE=60s NEREID_KILL_REPORT=$(CURDIR)/bin/kills.txt go test -count=1 -v -timeout 10h -run '^TestKills|^TestSequences|^TestIterations|^TestStops|^TestCleanStops' ./test/cluster/

.PHONY: images
images: docker-check ## Build the images of a cluster
	docker compose --profile observability build

.PHONY: compose-up
compose-up: docker-check ## Start a cluster of containers and wait until it is ready; ARGS="--scale worker=3" passes more
	@docker compose up --build --detach --wait --wait-timeout 900 $(ARGS) \
		|| { echo "not ready: docker compose run --rm nereid status --url=front:8001 says what is missing" >&2; exit 1; }
	@echo "ready: HTTP on localhost:$${NEREID_HTTP_PORT:-8000}, gRPC on localhost:$${NEREID_GRPC_PORT:-8001}"

.PHONY: compose-down
compose-down: docker-check ## Stop the cluster and remove its containers; ARGS=--volumes removes its models and keys as well
	docker compose --profile observability down $(ARGS)

.PHONY: compose-test
compose-test: docker-check deps ## Test the cluster of containers: clients, scaling, and the death of each part
	NEREID_COMPOSE=1 go test -count=1 -v -timeout 45m ./test/compose/

.PHONY: docker-check
docker-check:
	@command -v docker >/dev/null || { echo "docker is not here: install Docker Engine 20.10 or newer with its compose plugin" >&2; exit 1; }
	@docker compose version >/dev/null 2>&1 || { echo "docker has no compose v2: install its compose plugin (Debian and Ubuntu: docker-compose-plugin)" >&2; exit 1; }
	@docker info >/dev/null 2>&1 || { echo "docker's engine does not answer: start it, or let this user reach it (docker info says more)" >&2; exit 1; }

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

$(VERSITYGW):
	CGO_ENABLED=0 GOBIN=$(@D) go install github.com/versity/versitygw/cmd/versitygw@$(VERSITYGW_VERSION)
	@mv $(@D)/versitygw $@

$(GREMLINS):
	GOBIN=$(@D) go install github.com/go-gremlins/gremlins/cmd/gremlins@$(GREMLINS_VERSION)
	@mv $(@D)/gremlins $@

$(GRPCURL):
	GOBIN=$(@D) go install github.com/fullstorydev/grpcurl/cmd/grpcurl@$(GRPCURL_VERSION)
	@mv $(@D)/grpcurl $@

$(FAKE_GCS):
	CGO_ENABLED=0 GOBIN=$(@D) go install github.com/fsouza/fake-gcs-server@$(FAKE_GCS_VERSION)
	@mv $(@D)/fake-gcs-server $@

$(AZURITE): deps/azurite/package-lock.json
	@command -v npm >/dev/null || { echo "npm is not here: install Node.js 20 or newer" >&2; exit 1; }
	@mkdir -p .deps/azurite && cp deps/azurite/package*.json .deps/azurite/
	cd .deps/azurite && npm ci --omit=dev --omit=optional --no-audit --no-fund --ignore-scripts
	@touch $@

$(GOFUMPT):
	GOBIN=$(@D) go install mvdan.cc/gofumpt@$(GOFUMPT_VERSION)
	@mv $(@D)/gofumpt $@

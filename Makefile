# The environment may be empty, and a user's PATH lacks the administrator's tools.
export PATH := $(if $(PATH),$(PATH):)/usr/local/go/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
# A path as one word of the shell.
quote = '$(subst ','\'',$(1))'
UID := $(shell PATH=$(call quote,$(PATH)) id -u)
export HOME ?= $(shell PATH=$(call quote,$(PATH)) getent passwd $(UID) | cut -d: -f6)

# What needs root runs by $(AS_ROOT) or, when it is Go, with $(EXEC): the build is the
# user's then, the program root's. For root both are empty, but in a checkout of somebody
# else, to whom belongs what root makes in it.
OWNER := $(shell PATH=$(call quote,$(PATH)) stat --format=%u .)
AS_ROOT := $(if $(filter-out 0,$(UID) $(OWNER)),tools/setup/elevate)
EXEC := $(if $(AS_ROOT),-exec $(call quote,"$(CURDIR)/$(AS_ROOT)"))
# What to run where sudo is missing.
export GOAL := make $(MAKECMDGOALS)

# The same for all that is built: a package is compiled once. Without what debuggers need, which
# is stripped in the end, that takes a twelfth less.
export CGO_ENABLED ?= 0
SHARED_GOFLAGS = -trimpath -buildvcs=false -gcflags=all=-dwarf=false
export GOFLAGS := $(strip $(filter-out $(SHARED_GOFLAGS),$(GOFLAGS)) $(SHARED_GOFLAGS))

# For what makes files in the checkout as whoever runs make: those of root in a checkout of somebody else
# belong to whom it does.
AS_IS := $(if $(filter 0,$(UID)),$(if $(AS_ROOT),$(call quote,$(CURDIR)/$(AS_ROOT))))
GO ?= go
override GO := $(strip $(AS_IS) $(GO))
BIN ?= bin
STATICCHECK = $(GO) tool -modfile=tools/lint/go.mod staticcheck
VERSION ?= $(shell PATH=$(call quote,$(PATH)) tools/setup/git describe --tags --always --dirty 2>/dev/null || echo devel)
# Where make image names the image for, and the machines it is made for.
IMAGE ?= ghcr.io/beeline-lb/beeline
IMAGE_ARCHS ?= amd64 arm64
VERSION_VARIABLE = github.com/beeline-lb/beeline/pkg/version.Version
BPF_SOURCES = $(shell find bpf tests/bench/bpf -name '*.[ch]')
# What make test tests; what takes longest begins first.
PACKAGES ?= ./tools/kernels ./tests/differential ./tests/packets ./tests/verify ./tests/netns ./pkg/datapath ./...
# Test binaries are linked each time: without symbols in two thirds of the time. make lint vets.
TEST_BUILD = -vet=off -ldflags=-s
# For a test that hangs: nothing else may take that long, however slow the machine.
TEST_TIMEOUT ?= 60m
TEST_FLAGS ?=
# Tests, and subtests, of which make test has left something out: folder and pattern of each.
TEST_LEFT = $(call quote,$(abspath $(BIN))/left)

.DEFAULT_GOAL := help
# Where /tmp is mounted noexec, go run and go test build what they start in another folder, and tests
# have theirs there. ./... passes by a folder with a dot.
BUILD_TMP :=
ifneq ($(findstring noexec,$(shell PATH=$(call quote,$(PATH)) findmnt --noheadings --output OPTIONS --target "$${TMPDIR:-/tmp}" 2>/dev/null)),)
export GOTMPDIR ?= $(CURDIR)/.cache/tmp
BUILD_TMP := .cache/tmp
endif

# Targets share the machine and its package manager.
.NOTPARALLEL:

.PHONY: help
help: ## list the targets
	@echo "Beeline $(VERSION)"
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.cache/tmp:
	@$(AS_IS) mkdir -p $@

.PHONY: build
build: | $(BUILD_TMP) ## build bin/beeline-agent and bin/beeline
	$(GO) build \
		-ldflags "-s -w -X $(VERSION_VARIABLE)=$(VERSION)" \
		-o $(call quote,$(BIN)/) ./cmd/beeline-agent ./cmd/beeline

.PHONY: image
image: root setup-image ## build bin/image/beeline-ARCH.tar for docker load and ctr images import, bin/image/beeline.tar for registries
	@$(AS_ROOT) tools/image/build "$(IMAGE):$(VERSION)" "$(VERSION)" $(IMAGE_ARCHS)

.PHONY: image-root
image-root: | $(BUILD_TMP) ## make all files of the image in the folder ROOT, for the machine ARCH
	GOARCH=$(ARCH) $(MAKE) build BIN=$(call quote,$(ROOT)/usr/local/bin)
	$(GO) run ./tools/image -version $(VERSION) -o $(call quote,$(ROOT)/usr/share/doc/beeline) $(call quote,$(ROOT)/usr/local/bin)/*
	cp LICENSE bpf/LICENSES/* $(call quote,$(ROOT)/usr/share/doc/beeline/)

.PHONY: setup
setup: setup-test-all setup-demo setup-generate setup-image setup-cluster ## install everything the other targets need (Debian)

.PHONY: setup-test setup-test-all setup-demo setup-generate setup-image setup-cluster
setup-test setup-test-all setup-demo setup-generate setup-image setup-cluster: setup-%: | $(BUILD_TMP)
	@GOAL="make $@" tools/setup/install $*

.PHONY: generate
generate: setup-generate ## regenerate the BPF objects and their Go types (clang-19)
	$(GO) generate ./...

.PHONY: check-generate
check-generate: setup-generate ## fail when the committed BPF objects are not those of the sources
	@.ci/check-generate

.PHONY: fmt
fmt: setup-generate ## format the Go and C sources
	gofmt -w .
	$(AS_IS) clang-format-19 -i $(BPF_SOURCES)

.PHONY: lint
lint: setup-generate ## check formatting, marks of merges, go vet, staticcheck, tidy modules
	@tools/setup/git grep -nE '^(<<<<<<<|>>>>>>>)( |$$)'; status=$$?; \
		test $$status != 0 || { echo "left by a merge" >&2; exit 1; }; test $$status = 1
	@unformatted=$$(gofmt -l .) && test -z "$$unformatted" || \
		{ echo "not formatted, run make fmt: $$unformatted" >&2; exit 1; }
	clang-format-19 --dry-run -Werror $(BPF_SOURCES)
	$(GO) vet ./...
	$(STATICCHECK) ./...
	$(GO) mod tidy -diff
	cd tools/lint && $(GO) mod tidy -diff

# Tests start the agent that was built for them; without, each package builds its own.
test test-rest test-all coverage stress: export BEELINE_AGENT = $(abspath $(BIN))/beeline-agent
# Two more packages at a time than processors: some wait most of the time.
test test-rest test-all test-race coverage: TEST_BUILD += -p $$(($$(nproc) + 2))

.PHONY: test
test: root setup-test build ## run the tests of PACKAGES (./...) but those that take long
	@rm -f $(TEST_LEFT)
	BEELINE_TEST_LEFT=$(TEST_LEFT) $(GO) test $(EXEC) $(TEST_BUILD) -count=1 -timeout $(TEST_TIMEOUT) $(TEST_FLAGS) $(PACKAGES)

# What takes longest begins first.
.PHONY: test-rest
test-rest: root setup-test-all build ## run the tests and subtests of which make test has just left something out
	@test -s $(TEST_LEFT) || { echo no $(TEST_LEFT)": make test comes first" >&2; exit 1; }
	BEELINE_TEST_ALL=1 $(GO) test $(EXEC) $(TEST_BUILD) -count=1 -timeout $(TEST_TIMEOUT) $(TEST_FLAGS) \
		-run "$$(cut -f 2 $(TEST_LEFT) | sort -u | paste -s -d '|')" \
		$$(cut -f 1 $(TEST_LEFT) | sort -r -u | xargs -d '\n' realpath --relative-to=. | sed 's|^|./|')

.PHONY: test-all
test-all: root setup-test-all build ## run all tests, those of the programs in the oldest kernel among them
	BEELINE_TEST_ALL=1 $(GO) test $(EXEC) $(TEST_BUILD) -count=1 -timeout $(TEST_TIMEOUT) $(TEST_FLAGS) $(PACKAGES)

# How long each target is fuzzed, and which ones: a regexp of folder and name.
FUZZTIME ?= 30s
TARGET ?=

.PHONY: fuzz
fuzz: root setup-test ## fuzz all parsers and the programs, each for FUZZTIME; TARGET=pkg/tunnel
	@$(GO) run $(EXEC) ./tools/fuzz -time $(FUZZTIME) -target '$(TARGET)'

.PHONY: differential
differential: SEED ?= 1
differential: export BEELINE_AGENT = $(abspath $(BIN))/beeline-agent
differential: COUNT = 1000
differential: root setup-test-all build ## compare COUNT (1000) random clusters of SEED with kube-proxy, and print the smallest that differ
	BEELINE_TEST_ALL=1 $(GO) test $(EXEC) -count=1 -v -timeout 0 -run 'TestRandomClusters' \
		./tests/differential -seed=$(SEED) -clusters=$(COUNT)

# Agents that tests start are built with the race detector, too, and end at the first race. What the
# tests cover is counted apart: with the detector each count takes so long that what only computes is
# seven times as slow.
.PHONY: test-race
test-race: export BEELINE_AGENT = $(abspath $(BIN))/race/beeline-agent
test-race: export GORACE = halt_on_error=1
test-race: export CGO_ENABLED = 1
test-race: root setup-test-all ## run the tests of make test with the race detector
	$(GO) build -race -ldflags '-s -w' -o $(BIN)/race/ ./cmd/beeline-agent
	$(GO) test $(EXEC) $(TEST_BUILD) -race -count=1 -timeout $(TEST_TIMEOUT) $(TEST_FLAGS) $(PACKAGES)

.PHONY: coverage
coverage: root setup-test build ## run the tests of make test, and print how much of the code they cover themselves
	$(GO) test $(EXEC) $(TEST_BUILD) -count=1 -timeout $(TEST_TIMEOUT) $(TEST_FLAGS) \
		-coverpkg=./cmd/...,./pkg/... -coverprofile=$(BIN)/coverage.out $(PACKAGES)
	@$(GO) tool cover -func=$(BIN)/coverage.out | tail -n 1

# How often make stress runs each package beside each load, in processors, and which tests.
COUNT ?= 20
LOAD ?= 0,1.5
RUN ?=

.PHONY: stress
stress: root setup-test-all build ## run PACKAGES COUNT times in random order beside each LOAD; print what failed
	$(GO) run $(EXEC) ./tools/stress -all -count $(COUNT) -load $(LOAD) -run '$(RUN)' $(PACKAGES)

.PHONY: test-kernels
test-kernels: setup-test-all ## run the tests of the programs in every supported kernel
	$(GO) run ./tools/kernels -all -kernel all

# The cluster that make cluster boots; FABRIC connects the pods (routes, vxlan, flannel,
# flannel-host-gw, kube-router, cilium; kindnet of the checkout KINDNET_SRC of kind; calico,
# calico-cross-subnet, calico-nftables of the checkout CALICO_SRC), POLICY=kube-network-policies enforces
# NetworkPolicy, SET is values of Beeline's chart, as for helm --set.
PROXY ?= beeline
MODE ?= nftables
FABRIC ?= routes
POLICY ?=
SET ?=
NODES ?= 3
PROCS ?= 4
CLUSTER_IMAGE = bin/cluster-image
CLUSTER = $(GO) run $(EXEC) ./tests/cluster --proxy=$(PROXY) --mode=$(MODE) --fabric=$(FABRIC) --policy=$(POLICY) --set='$(SET)' \
	--nodes=$(NODES) --procs=$(PROCS) --archive=$(CLUSTER_IMAGE)/beeline-$(shell $(GO) env GOARCH).tar

.PHONY: cluster-image
cluster-image: root setup-image setup-cluster
	@IMAGE_DIR=$(CLUSTER_IMAGE) $(MAKE) --no-print-directory image \
		IMAGE_ARCHS=$(shell $(GO) env GOARCH) IMAGE=ghcr.io/beeline-lb/beeline VERSION=cluster

.PHONY: cluster
cluster: cluster-image ## boot a Kubernetes cluster on this machine; PROXY=kube-proxy, FABRIC=vxlan, flannel, flannel-host-gw, kube-router, cilium, kindnet or calico, SET=config.xdp=generic
	@$(CLUSTER) up

.PHONY: cluster-e2e
cluster-e2e: cluster-image ## boot a cluster and run Kubernetes' tests of the network; FOCUS=regexp
	@$(CLUSTER) e2e $(if $(FOCUS),--focus='$(FOCUS)') $(if $(AGAIN),--again)

.PHONY: cluster-migrate
cluster-migrate: cluster-image ## replace kube-proxy by Beeline in a cluster and go back, under traffic
	@$(CLUSTER) migrate

.PHONY: cluster-metallb
cluster-metallb: cluster-image ## have MetalLB announce load balancers of a cluster, whose nodes and endpoints go
	@$(CLUSTER) metallb

.PHONY: cluster-plugin
cluster-plugin: cluster-image ## ask all nodes of a cluster by kubectl beeline, and two that do not answer
	@$(CLUSTER) plugin

.PHONY: cluster-policy
cluster-policy: cluster-image ## try NetworkPolicies in a cluster, of FABRIC=kube-router or POLICY=kube-network-policies
	@$(CLUSTER) policy

.PHONY: cluster-powercut
cluster-powercut: cluster-image ## cut the power of a node of a cluster under traffic, and count what fails; SET=config.outlierDetection=on
	@$(CLUSTER) powercut

.PHONY: cluster-restart cluster-rollout cluster-upgrade
cluster-restart: cluster-image ## restart the add-on that connects the pods of a cluster, under traffic; FABRIC=flannel
	@$(CLUSTER) restart

cluster-rollout: cluster-image ## replace pods behind a load balancer in a cluster, under traffic
	@$(CLUSTER) rollout

cluster-upgrade: cluster-image ## upgrade Beeline in a cluster and roll back, under traffic
	@$(CLUSTER) upgrade

# Which cells of the table make cluster-matrix runs; all take hours.
FABRICS ?=
CHECKS ?=

.PHONY: cluster-matrix
cluster-matrix: cluster-image ## run checks with networks of pods, and write the table of docs/compatibility.md; FABRICS=flannel,calico CHECKS=e2e,migrate
	@$(CLUSTER) matrix $(if $(FABRICS),--fabrics=$(FABRICS)) $(if $(CHECKS),--checks=$(CHECKS))

# How long make soak disturbs the cluster; SEED repeats the order of a former run.
SOAK ?= 1h

.PHONY: soak
soak: cluster-image ## disturb a cluster in every way for SOAK (1h), under traffic; SEED=number
	@$(CLUSTER) soak --duration=$(SOAK) $(if $(SEED),--seed=$(SEED))

.PHONY: bench
bench: root setup-test build ## measure; writes tests/bench/RESULTS.md
	$(GO) run $(EXEC) ./tests/bench

.PHONY: demo
demo: root setup-demo build ## show Services being served, on this machine, and tidy up
	@$(GO) run $(EXEC) ./tools/demo

.PHONY: clean
clean: ## remove what was built and the downloaded kernels
	rm -rf bin .cache 2>/dev/null || $(AS_ROOT) rm -rf bin .cache

# Asks for a password, or says that there is no sudo, before anything is built.
.PHONY: root
root: | $(BUILD_TMP)
	@$(AS_ROOT) true

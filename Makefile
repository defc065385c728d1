# sudo drops the places where Go and the administrator's tools are.
export PATH := $(PATH):/usr/local/go/bin:/usr/local/sbin:/usr/sbin:/sbin

GO ?= go
BIN ?= bin
STATICCHECK = $(GO) tool -modfile=tools/lint/go.mod staticcheck
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
# Where make image names the image for, and the machines it is made for.
IMAGE ?= ghcr.io/beeline-lb/beeline
IMAGE_ARCHS ?= amd64 arm64
VERSION_VARIABLE = github.com/beeline-lb/beeline/pkg/version.Version
BPF_SOURCES = $(shell find bpf tests/bench/bpf -name '*.[ch]')
# Long enough for a package that boots an API server on two slow cores.
TEST_TIMEOUT ?= 15m

.DEFAULT_GOAL := help
# Targets share the machine and its package manager.
.NOTPARALLEL:

.PHONY: help
help: ## list the targets
	@echo "Beeline $(VERSION)"
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: build
build: ## build bin/beeline-agent and bin/beeline
	CGO_ENABLED=0 $(GO) build -trimpath -buildvcs=false \
		-ldflags "-s -w -X $(VERSION_VARIABLE)=$(VERSION)" \
		-o $(BIN)/ ./cmd/beeline-agent ./cmd/beeline

.PHONY: image
image: root setup-image ## build bin/image/beeline-ARCH.tar for docker load and ctr images import, bin/image/beeline.tar for registries (root)
	@tools/image/build "$(IMAGE):$(VERSION)" "$(VERSION)" $(IMAGE_ARCHS)

.PHONY: image-root
image-root: ## make all files of the image in the folder ROOT, for the machine ARCH
	GOARCH=$(ARCH) $(MAKE) build BIN=$(ROOT)/usr/local/bin
	$(GO) run ./tools/image -version $(VERSION) -o $(ROOT)/usr/share/doc/beeline $(ROOT)/usr/local/bin/*
	cp LICENSE bpf/LICENSES/* $(ROOT)/usr/share/doc/beeline/

.PHONY: setup
setup: setup-test setup-demo setup-generate setup-image setup-cluster ## install everything the other targets need (Debian, Ubuntu; root)

.PHONY: setup-test setup-demo setup-generate setup-image setup-cluster
setup-test setup-demo setup-generate setup-image setup-cluster: setup-%:
	@tools/setup/install $*

.PHONY: generate
generate: setup-generate ## regenerate the BPF objects and their Go types (clang-19)
	$(GO) generate ./...

.PHONY: check-generate
check-generate: setup-generate ## fail when the committed BPF objects are not those of the sources
	@.ci/check-generate

.PHONY: fmt
fmt: setup-generate ## format the Go and C sources
	gofmt -w .
	clang-format-19 -i $(BPF_SOURCES)

.PHONY: lint
lint: setup-generate ## check formatting, go vet, staticcheck, tidy modules
	@unformatted=$$(gofmt -l .) && test -z "$$unformatted" || \
		{ echo "not formatted, run make fmt: $$unformatted" >&2; exit 1; }
	clang-format-19 --dry-run -Werror $(BPF_SOURCES)
	$(GO) vet ./...
	$(STATICCHECK) ./...
	$(GO) mod tidy -diff
	cd tools/lint && $(GO) mod tidy -diff

# What these show is the same in every kernel, and loading programs takes long in an
# emulated one: make test leaves them to make test-kernels.
KERNEL_SKIP = ^Test(WatchingForAnAgent|DeviceMadeAgain|AnotherWay|DeviceThat|XDPDeviceThat|XDPLastOf|SecondAgent|$\
	XDPModeChanges|XDPKnows|MapsOfAnother|PinsOfAnother|RemovedCgroup|AnotherCgroup|OverlayGets|NodeIPChooses|$\
	MasqueradeAddress|DevicesOfThePreparing|DevicesAreLeftAlone|SourceAddressStays|WithoutDevices|$\
	InternalCIDRs|UnknownTCMode|NothingIsPinned|AffinityClock|ReplacedEndpoints|Turns|$\
	NodePortNewAddress|NoWeight|Terminating)

.PHONY: test
test: root setup-test build ## run all tests, then those of the programs in the oldest kernel (root)
	$(GO) test -count=1 -timeout $(TEST_TIMEOUT) ./...
	$(GO) run ./tools/kernels -kernel 6.1 -- -test.skip '$(KERNEL_SKIP)'

.PHONY: test-kernels
test-kernels: root setup-test ## run the tests of the programs in every supported kernel (root)
	$(GO) run ./tools/kernels -kernel all

# The cluster that make cluster boots; SET is values of Beeline's chart, as for helm --set.
PROXY ?= beeline
MODE ?= nftables
FABRIC ?= routes
SET ?=
NODES ?= 3
PROCS ?= 4
CLUSTER_IMAGE = bin/cluster-image
CLUSTER = $(GO) run ./tests/cluster --proxy=$(PROXY) --mode=$(MODE) --fabric=$(FABRIC) --set='$(SET)' \
	--nodes=$(NODES) --procs=$(PROCS) --archive=$(CLUSTER_IMAGE)/beeline-$(shell $(GO) env GOARCH).tar

.PHONY: cluster-image
cluster-image: root setup-image setup-cluster
	@IMAGE_DIR=$(CLUSTER_IMAGE) $(MAKE) --no-print-directory image \
		IMAGE_ARCHS=$(shell $(GO) env GOARCH) IMAGE=ghcr.io/beeline-lb/beeline VERSION=cluster

.PHONY: cluster
cluster: cluster-image ## boot a Kubernetes cluster on this machine; PROXY=kube-proxy, FABRIC=vxlan, SET=config.xdp=generic (root)
	@$(CLUSTER) up

.PHONY: cluster-e2e
cluster-e2e: cluster-image ## boot a cluster and run Kubernetes' tests of the network; FOCUS=regexp (root)
	@$(CLUSTER) e2e $(if $(FOCUS),--focus='$(FOCUS)') $(if $(AGAIN),--again)

.PHONY: cluster-migrate
cluster-migrate: cluster-image ## replace kube-proxy by Beeline in a cluster and go back, under traffic (root)
	@$(CLUSTER) migrate

.PHONY: cluster-rollout cluster-upgrade
cluster-rollout: cluster-image ## replace pods behind a load balancer in a cluster, under traffic (root)
	@$(CLUSTER) rollout

cluster-upgrade: cluster-image ## upgrade Beeline in a cluster and roll back, under traffic (root)
	@$(CLUSTER) upgrade

.PHONY: bench
bench: root setup-test build ## measure; writes tests/bench/RESULTS.md (root)
	$(GO) run ./tests/bench

.PHONY: demo
demo: root setup-demo build ## show Services being served, on this machine, and tidy up (root)
	@$(GO) run ./tools/demo

.PHONY: clean
clean: ## remove what was built and the downloaded kernels
	rm -rf bin .cache

.PHONY: root
root:
	@test "$$(id -u)" = 0 || { \
		echo "make $(MAKECMDGOALS) needs root, to load BPF programs and make network namespaces:" \
			"run sudo make $(MAKECMDGOALS)" >&2; exit 1; }

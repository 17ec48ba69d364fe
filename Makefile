# Everything CI runs is here; .ci/run only calls `make test`.

GO       ?= go
FUZZTIME ?= 60s

# What `make test` spends on each fuzz target. `make fuzz` is for finding, this is for noticing
# that a target no longer works.
FUZZTIME_SHORT ?= 5s

# What must compile although CI does not run it.
PLATFORMS := darwin/arm64 windows/amd64

SHELL       := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

# A checkout that belongs to another user, as in a container, has no version to stamp.
export GOFLAGS := $(strip $(GOFLAGS) -buildvcs=false)

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# One after another, the quickest to fail first.
.PHONY: test
test: ## run all that CI runs, in about ten minutes on two cores
	@$(MAKE) --no-print-directory need-cc
	@$(MAKE) --no-print-directory fmt vet
	@$(MAKE) --no-print-directory lint
	@$(MAKE) --no-print-directory race
	@$(MAKE) --no-print-directory nocgo
	@$(MAKE) --no-print-directory cross
	@$(MAKE) --no-print-directory fuzz FUZZTIME=$(FUZZTIME_SHORT)
	@$(MAKE) --no-print-directory planted PLANTED=-short
	@echo "make test: all green"

.PHONY: fmt
fmt: ## complain about files that gofmt would change
	@files=$$(gofmt -l .); if [ -n "$$files" ]; then echo "gofmt -w would change:"; echo "$$files"; exit 1; fi

.PHONY: vet
vet: ## run go vet
	$(GO) vet ./...

.PHONY: lint
lint: ## run staticcheck, from the module in tools/
	$(GO) tool -modfile=tools/go.mod staticcheck ./...

.PHONY: race
race: need-cc ## run all tests under the race detector
	$(GO) test -race -timeout 5m ./...

.PHONY: nocgo
nocgo: ## run the tests that cgo makes a difference to, without it
	CGO_ENABLED=0 $(GO) test . ./persist/sqlite/...

# vet, not build, because it compiles the tests too.
.PHONY: cross
cross: ## compile for the platforms that CI does not run on
	@for platform in $(PLATFORMS); do \
		echo "GOOS=$${platform%/*} GOARCH=$${platform#*/} CGO_ENABLED=0 $(GO) vet ./..."; \
		GOOS=$${platform%/*} GOARCH=$${platform#*/} CGO_ENABLED=0 $(GO) vet ./...; \
	done

.PHONY: fuzz
fuzz: ## run every fuzz target for FUZZTIME (60s)
	@GO=$(GO) tools/fuzz $(FUZZTIME)

.PHONY: planted
planted: ## break each mechanism on purpose; a test must notice (PLANTED='-only lock')
	$(GO) run ./internal/planted $(PLANTED)

.PHONY: crash
crash: ## kill writing processes 3000 times and look for what was lost or doubled (CI: 400 times)
	PAWL_KILLS=3000 $(GO) test -count=1 -v -run '^TestKilledWritersLoseAndDoubleNothing$$' .

# The race detector and one SQLite driver need a C compiler.
.PHONY: need-cc
need-cc:
	@cc=$$($(GO) env CC); command -v "$${cc%% *}" >/dev/null && exit 0; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -qy gcc libc6-dev; \
	else \
		echo "make: no C compiler ($$cc): install one, on Debian with: sudo apt-get install gcc libc6-dev" >&2; exit 1; \
	fi

# Everything CI runs is here; .ci/run only calls `make test` and `make test-modules`.

GO        ?= go
FUZZTIME  ?= 60s
SOAK      ?= 1800
SCHEDULES ?= 100000

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

# The library is tested with the versions in its own go.mod, which are the least that its users get.
# The modules beside it find it by go.work, and are tested with that: $(WORK) comes before their commands.
export GOWORK := off
WORK := GOWORK=
# staticcheck, from the module in tools/.
STATICCHECK = $$($(GO) tool -modfile=$(CURDIR)/tools/go.mod -n staticcheck)

# The race detector lets every process that ends sleep for a second. Tests start many processes.
export GORACE := atexit_sleep_ms=0

# What tests may not do without, separated by spaces or commas. `go test` alone skips a test whose
# program is missing and says so; under make it fails. The need-* targets below install them.
export PAWL_TEST_REQUIRE := postgres strace chromium

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# Packages whose tests take longest. They are part of test-modules, so that each half of CI stays
# below fifteen minutes.
LONG := /(stream|flow/batch)$$

# What starts first, so that it is not still running when all the rest is done.
SLOWEST := . ./persist/postgres ./persist/fs

# One after another, the quickest to fail first.
.PHONY: test
test: ## test the library and its examples, without streams and batches, in less than fifteen minutes on two cores
	@$(MAKE) --no-print-directory need-cc need-postgres need-strace
	@$(MAKE) --no-print-directory fmt vet
	@$(MAKE) --no-print-directory lint
	@$(MAKE) --no-print-directory race PAWL_SHORT=1 PACKAGES="$$($(GO) list $(SLOWEST) ./... | awk '!seen[$$0]++' | grep -vE '$(LONG)' | tr '\n' ' ')"
	@echo "make test: all green"

# The rest of CI, in short forms: one foreign platform, fuzzing and planted bugs of the packages that
# compile quickly. Some modules stand apart: what they need stays out of the go.sum of Pawl's users.
# Much of what the parts do is waiting: two at a time take 14 minutes, one after another 25. A part's
# output comes at its end.
JOBS ?= 2
.PHONY: test-modules
test-modules: ## the rest, in less than fifteen minutes on two cores: streams and batches, without cgo, other platforms, fuzzing, planted bugs, the command pawl, a browser, the benchmark, OpenTelemetry, etcd, ADK
	@$(MAKE) --no-print-directory need-cc need-postgres need-strace need-chromium
	@$(MAKE) --no-print-directory -j $(JOBS) --output-sync=target race cross planted etcd nocgo browser adk cli fuzz bench-test otel \
		PAWL_SHORT=1 PACKAGES="$$($(GO) list ./... | grep -E '$(LONG)' | tr '\n' ' ')" PLATFORMS=windows/amd64 \
		FUZZTIME=$(FUZZTIME_SHORT) FUZZPACKAGES='./internal/... ./persist/...' PLANTED="-short -only '^(internal|persist)/'"
	@echo "make test-modules: all green"

.PHONY: fmt
fmt: ## complain about files that gofmt would change
	@files=$$(gofmt -l .); if [ -n "$$files" ]; then echo "gofmt -w would change:"; echo "$$files"; exit 1; fi

# As the race detector compiles: then SQLite and all the rest are compiled once, not twice.
.PHONY: vet
vet: ## run go vet
	$(GO) vet -race ./...

.PHONY: lint
lint: ## run staticcheck, from the module in tools/
	GOFLAGS="$(GOFLAGS) -race" $(STATICCHECK) ./...

PACKAGES ?= ./...

# More packages at a time than there are processors: much of what they do is waiting. The target vet does
# more than go test's own, and a stack trace needs no table for debuggers, which takes half of the time of
# linking.
.PHONY: race
race: need-cc need-postgres need-strace ## run all tests under the race detector (PAWL_SHORT=1: with fewer repetitions, as make test does)
	PAWL_SHORT=$(PAWL_SHORT) $(GO) test -race -vet=off -ldflags=-w -timeout 20m -p 4 $(PACKAGES)

.PHONY: nocgo
nocgo: need-strace ## run the tests that cgo makes a difference to, without it
	PAWL_SHORT=$(PAWL_SHORT) CGO_ENABLED=0 PAWL_TEST_STORE_ONLY=sqlite $(GO) test . ./persist/sqlite/...

# vet, not build, because it compiles the tests too.
.PHONY: cross
cross: ## compile for the platforms that CI does not run on
	@for platform in $(PLATFORMS); do \
		echo "GOOS=$${platform%/*} GOARCH=$${platform#*/} CGO_ENABLED=0 $(GO) vet ./..."; \
		GOOS=$${platform%/*} GOARCH=$${platform#*/} CGO_ENABLED=0 $(GO) vet ./...; \
	done

.PHONY: fuzz
fuzz: ## run every fuzz target for FUZZTIME (60s)
	@GO=$(GO) tools/fuzz $(FUZZTIME) $(FUZZPACKAGES)
ifndef FUZZPACKAGES
	@$(WORK) GO=$(GO) tools/fuzz $(FUZZTIME) ./cmd/pawl ./adk
endif

.PHONY: planted
planted: need-postgres need-strace ## break each mechanism on purpose; a test must notice (PLANTED='-only lock')
	$(GO) run ./internal/planted $(PLANTED)

.PHONY: crash
crash: need-postgres ## kill writing processes 1000 times on each store and look for what was lost or doubled (CI: 20 times)
	PAWL_KILLS=1000 $(GO) test -count=1 -v -run '^TestKilledWritersLoseAndRepeatNothing$$' .
	PAWL_KILLS=100 $(GO) test -count=1 -v -timeout 30m -run '^TestKilledAtRandomMoments$$' ./flow/machine

.PHONY: proof
proof: need-cc need-postgres need-strace ## kill, cut, stop and starve everything in short, in about ten minutes, and write docs/reliability.md
	$(GO) run ./internal/proof -docs

.PHONY: soak
soak: need-postgres ## use all parts with processes that come and go for SOAK seconds (1800), then durable runs for a third of that, and check every answer (CI: 8)
	PAWL_SOAK=$(SOAK) $(GO) test -count=1 -v -timeout $$(($(SOAK) + 900))s ./internal/soak
	PAWL_KILLS=20 PAWL_SOAK=$$(($(SOAK) / 3)) $(GO) test -count=1 -v -timeout $$(($(SOAK) / 3 + 600))s -run '^(TestSoak|TestKilledAtEveryBoundary|TestKilledAgainAndAgain)$$' ./flow/run

.PHONY: streams
streams: need-postgres ## commit to and consume event streams with 8 processes, 1000 commits each (CI: 50)
	PAWL_COMMITS=1000 $(GO) test -count=1 -v -timeout 30m -run '^TestProcesses' ./stream

.PHONY: schedules
schedules: ## run a queue, a scope in memory and stored scopes under SCHEDULES (100,000) schedules each, in some minutes (CI: 10,000 in all)
	PAWL_SCHEDULES=$(SCHEDULES) $(GO) test -count=1 -v -timeout 2h -run 'Schedules$$' ./internal/schedule

.PHONY: inspect-scale
inspect-scale: need-cc need-postgres ## count what the pages of package inspect read of a million documents (CI: 20,000)
	PAWL_RECORDS=1000000 $(GO) test -count=1 -v -timeout 30m -run '^TestPagesRead' ./inspect

# Without cgo two drivers would claim one name.
.PHONY: bench bench-quick bench-load bench-test bench-lint
bench: need-cc need-postgres bench-test bench-lint ## measure against the peers and check the goals, in up to 20 minutes (bench/README.md)
	cd bench && $(WORK) $(GO) run . -check -docs

bench-quick: need-cc need-postgres ## the same briefly and roughly, in less than a minute
	cd bench && $(WORK) $(GO) run . -quick

bench-load: need-cc need-postgres ## measure beside one busy process per core; checks only that no call fails
	cd bench && $(WORK) $(GO) run . -load -docs

bench-test: need-cc need-postgres ## vet and test the benchmark itself
	cd bench && $(WORK) $(GO) vet ./...
	cd bench && $(WORK) $(GO) test ./...

bench-lint: ## run staticcheck on the benchmark; it reads all of what the peers are made of, which takes a while
	staticcheck=$(STATICCHECK); cd bench && $(WORK) $$staticcheck ./...

# The command is compiled for the other platforms too.
.PHONY: cli
cli: need-cc need-postgres ## vet, lint and test the command pawl (docs/cli.md)
	cd cmd/pawl && $(WORK) $(GO) vet ./...
	@for platform in $(PLATFORMS); do \
		(cd cmd/pawl && $(WORK) GOOS=$${platform%/*} GOARCH=$${platform#*/} CGO_ENABLED=0 $(GO) vet .) || exit 1; \
	done
	staticcheck=$(STATICCHECK); cd cmd/pawl && $(WORK) $$staticcheck ./...
	cd cmd/pawl && $(WORK) $(GO) test ./...

.PHONY: browser
browser: need-chromium need-postgres ## test the chat example in a real browser, with real server processes
	cd examples/chat/browser && $(WORK) $(GO) vet ./...
	cd examples/chat/browser && $(WORK) $(GO) test -timeout 8m -parallel 4 ./...

.PHONY: otel
otel: need-cc ## vet, lint and test the observer for OpenTelemetry
	cd otel && $(WORK) $(GO) vet ./...
	staticcheck=$(STATICCHECK); cd otel && $(WORK) $$staticcheck ./...
	cd otel && $(WORK) $(GO) test -race ./...

# The servers of etcd are part of the test binary: nothing has to be installed.
.PHONY: etcd etcd-faults
etcd: need-cc ## vet, lint and test the store on etcd, with members as child processes, in some minutes
	cd persist/etcd && $(WORK) $(GO) vet ./...
	cd persist/etcd/etcdtest && $(WORK) $(GO) vet ./...
	staticcheck=$(STATICCHECK); cd persist/etcd && $(WORK) $$staticcheck ./... && cd etcdtest && $(WORK) $$staticcheck ./...
	cd persist/etcd && $(WORK) $(GO) test -race ./...
	cd persist/etcd/etcdtest && $(WORK) $(GO) test ./...

etcd-faults: ## kill, freeze and isolate members for 20 rounds, and run the conformance suite on three members (docs/stores.md)
	cd persist/etcd/etcdtest && PAWL_ETCD_ROUNDS=20 $(WORK) $(GO) test -count=1 -v -timeout 60m -run '^(TestFaults|TestConformanceOnThreeMembers)$$' .

.PHONY: adk adk-lost adk-bench adk-swap
adk: need-cc need-postgres ## vet, lint and test the session service for ADK (docs/adk.md)
	cd adk && $(WORK) $(GO) vet ./...
	staticcheck=$(STATICCHECK); cd adk && $(WORK) $$staticcheck ./...
	cd adk && PAWL_SHORT=1 $(WORK) $(GO) test -race -timeout 10m ./...

adk-lost: need-cc need-postgres ## count what ADK's session services and adk.Service lose, in some minutes (docs/adk.md)
	cd adk && $(WORK) $(GO) test -count=1 -timeout 30m -run '^TestLostUpdates$$' -v ./bench -lost

adk-bench: need-cc need-postgres ## measure adk.Service against ADK's database service, in some minutes
	cd adk && $(WORK) $(GO) test -count=1 -timeout 30m -run '^TestSpeed$$' -v ./bench -speed

adk-swap: ## run the tests of ADK's packages with adk.Service in place of the service in memory
	GO=$(GO) adk/swap/run

.PHONY: screenshot
screenshot: need-chromium ## take the pictures of the README and of docs/inspect.md anew
	cd examples/chat/browser && $(WORK) $(GO) test -count=1 -run '^TestScreenshot$$' -screenshot ../../../docs/chat.png .
	cd examples/chat/browser && $(WORK) $(GO) test -count=1 -run '^TestInspectScreenshot$$' -inspect-screenshot ../../../docs/inspect.png .

# $(call missing,what,packages) installs Debian's packages if it may, and says what to install if not.
define missing
if $(may-install); then \
	apt-get update -q && $(apt-install) $(2); \
else \
	echo "make: no $(1): install it, on Debian with: sudo apt-get install $(2)" >&2; exit 1; \
fi
endef
may-install = [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null
apt-install = DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends

# The race detector and one SQLite driver need a C compiler.
.PHONY: need-cc
need-cc:
	@cc=$$($(GO) env CC); command -v "$${cc%% *}" >/dev/null && exit 0; \
	$(call missing,C compiler ($$cc),gcc libc6-dev)

# Tests start a server of their own from these programs, unless PAWL_TEST_POSTGRES names a running
# one. Debian's package would start a server of its own, too; it is told not to.
.PHONY: need-postgres
need-postgres:
	@[ -z "$${PAWL_TEST_POSTGRES:-}" ] || exit 0; \
	for initdb in "$$(command -v initdb || true)" /usr/lib/postgresql/*/bin/initdb /usr/pgsql-*/bin/initdb; do \
		if [ -x "$$initdb" ] && [ -x "$$(dirname "$$(readlink -f "$$initdb")")/postgres" ]; then exit 0; fi; \
	done; \
	if $(may-install); then \
		apt-get update -q && $(apt-install) postgresql-common; \
		conf=/etc/postgresql-common/createcluster.conf; \
		trap 'sed -i "/# while make installs/d" $$conf' EXIT; \
		echo "create_main_cluster = false # while make installs" >>$$conf; \
	fi; \
	$(call missing,PostgreSQL,postgresql)

# A test reads in the system calls that a commit is synced before it is acknowledged.
.PHONY: need-strace
need-strace:
	@if [ "$$(uname)" != Linux ] || command -v strace >/dev/null; then exit 0; fi; \
	$(call missing,strace,strace)

# The page of the chat example is tested in it.
.PHONY: need-chromium
need-chromium:
	@for name in chromium chromium-browser google-chrome google-chrome-stable; do \
		if command -v $$name >/dev/null; then exit 0; fi; \
	done; \
	$(call missing,Chromium,chromium)

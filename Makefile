# Brevet. `make` lists what there is.

GO     ?= go
# The race detector needs a C compiler; without one the tests still run.
RACE   := $(shell command -v $$($(GO) env CC) >/dev/null 2>&1 && echo -race)
TOOL   := $(GO) tool -modfile=tools/go.mod
LDFLAGS := -s -w
# The packages whose tests take longest: they begin first.
LONG   := ./server ./ledger ./cmd/brevet ./tests/faults

.DEFAULT_GOAL := help

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: demo
demo: deps build ## Show the main job from start to finish, on real parts (builds Vault the first time: minutes)
	@./bin/brevet demo

.PHONY: dev
dev: deps build ## Run a private stack to develop against, until Ctrl-C
	@./bin/brevet dev

.PHONY: test
test: ## Run all tests against real servers
	@./devstack/deps.sh test
	$(GO) build -o bin/brevet ./cmd/brevet
	./bin/brevet dev --prepare
	$(GO) test $(RACE) -p 4 -shuffle=on -count=1 -timeout 20m $(LONG) ./...

.PHONY: check
check: ## Lint, and see that what is generated or tidied is current
	$(TOOL) golangci-lint run ./...
	$(GO) mod tidy -diff
	cd devstack/vaultd && $(GO) mod tidy -diff
	./openapi/generate.sh --check
	GOOS=darwin $(GO) vet ./...
	$(GO) fix -diff ./...

# What tells of known vulnerabilities: an address, or file:// and a folder with a copy.
VULNDB ?= https://vuln.go.dev

.PHONY: supply
supply: reproducible vuln ## See what the binary is made of, that anybody can make the same, and that no hole in it is known (minutes)
	$(GO) test . -count=1 -run TestLicences -args -sbom bin/brevet.cdx.json -notices bin/brevet.notices.txt
	@echo "bin/brevet.cdx.json and bin/brevet.notices.txt go with the binary"

.PHONY: reproducible
reproducible: ## Build the last commit twice, in two folders, the second time from nothing, and compare (minutes)
	@tmp=$$(mktemp -d) && trap 'rm -rf "$$tmp"' EXIT && \
		git clone -q . "$$tmp/one" && git clone -q . "$$tmp/and/another/one" && \
		$(MAKE) -s -C "$$tmp/one" build && GOCACHE="$$tmp/cache" $(MAKE) -s -C "$$tmp/and/another/one" build && \
		cmp "$$tmp/one/bin/brevet" "$$tmp/and/another/one/bin/brevet" && sha256sum <"$$tmp/one/bin/brevet" | sed 's/-/the same twice/'

.PHONY: vuln
vuln: ## Ask whether the binary calls anything with a known vulnerability (needs the network, or VULNDB=file:///a/copy)
	$(TOOL) govulncheck -db $(VULNDB) ./cmd/brevet

.PHONY: faults
faults: deps ## Break everything at every point, and write docs/faults.md (ten minutes or more)
	$(GO) build -o bin/brevet ./cmd/brevet
	./bin/brevet dev --prepare
	@rm -f docs/faults.md
	$(GO) test -c -o bin/faults.test ./tests/faults
	cd tests/faults && ../../bin/faults.test -test.timeout 90m -test.parallel 64 -all -issuances 10000 -kill-every 20s -matrix ../../docs/faults.md

.PHONY: tamper
tamper: deps ## Change a ledger in every way that an owner of the database can, and see that auditors find it (minutes)
	$(GO) build -o bin/brevet ./cmd/brevet
	./bin/brevet dev --prepare
	$(GO) test -c -o bin/tamper.test ./tests/tamper
	cd tests/tamper && ../../bin/tamper.test -test.timeout 60m -all

OAUTH := Grant|Introspection|Tokens|Revoking|Questions|OneShot|HandedDown|Metadata|ClientCredentials|Curl|TheDocs|KindOfToken|Proof|Key|TestCheck|TestNginx|Jose|StatusList

.PHONY: conformance
conformance: ## Hold the OAuth surface to its specifications: their own examples, every error, every token everywhere (minutes)
	@./devstack/deps.sh test
	$(GO) build -o bin/brevet ./cmd/brevet
	./bin/brevet dev --prepare
	{ $(GO) test -json -count=1 ./jws ./token ./dpop; $(GO) test -json -count=1 -timeout 20m -run '$(OAUTH)' ./server; } | awk -f tools/count.awk

.PHONY: egress
egress: deps ## Try every way around the egress gateway, and the tools of others through it (minutes; needs git, npm, Node, Python)
	@./devstack/deps.sh test
	$(GO) build -o bin/brevet ./cmd/brevet
	./bin/brevet dev --prepare
	{ $(GO) test -json -count=1 -timeout 20m ./egress; $(GO) test -json -count=1 -timeout 20m -run TestEgress ./cmd/brevet; } | awk -f tools/count.awk

.PHONY: hostile
hostile: ## Send everything that must not work, H1 to H107, to two replicas, and look at it everywhere (minutes; needs npm, Chromium)
	@./devstack/deps.sh test
	$(GO) build -o bin/brevet ./cmd/brevet
	./bin/brevet dev --prepare
	$(GO) test -c -o bin/hostile.test ./tests/hostile
	cd tests/hostile && ../../bin/hostile.test -test.timeout 15m

.PHONY: canary
canary: ## Look for secrets, in every spelling, in all logs, files, traces and metrics that a broker's work leaves behind (a minute)
	@./devstack/deps.sh test
	$(GO) build -o bin/brevet ./cmd/brevet
	./bin/brevet dev --prepare
	$(GO) test -json -count=1 ./tests/canary | awk -f tools/count.awk

SEEDS ?= 100

.PHONY: history
history: ## Hold what many callers of two replicas saw, while things fail, to models: SEEDS=100 runs (ten minutes)
	@./devstack/deps.sh test
	$(GO) build -o bin/brevet ./cmd/brevet
	./bin/brevet dev --prepare
	$(GO) test -c -o bin/history.test ./tests/history
	cd tests/history && ../../bin/history.test -test.timeout 60m -seeds $(SEEDS)

# The version that make upgrade begins with: the last one without the newest migration, or FROM=ref.
BEFORE = $(or $(FROM),$(shell git log -1 --diff-filter=A --format=%H^ -- $(lastword $(sort $(wildcard migrations/*.sql)))),HEAD)

.PHONY: upgrade
upgrade: deps ## Take two replicas under load from the version before the last migration to this one and back: FROM=ref begins elsewhere (minutes)
	$(GO) build -o bin/brevet ./cmd/brevet
	./bin/brevet dev --prepare
	$(GO) test -c -o bin/upgrade.test ./tests/upgrade
	@tmp=$$(mktemp -d) && trap 'rm -rf "$$tmp"' EXIT && git archive $(BEFORE) >"$$tmp/tar" && mkdir "$$tmp/tree" && tar -xf "$$tmp/tar" -C "$$tmp/tree" && \
		(cd "$$tmp/tree" && $(GO) build -o ../brevet ./cmd/brevet) && \
		cd tests/upgrade && ../../bin/upgrade.test -test.timeout 15m -from "$$tmp/brevet" -from-name "$$(git rev-parse --short $(BEFORE))"

.PHONY: soak
soak: deps ## Keep two replicas at work for an hour while something goes wrong each minute (SOAK=1h; SEED=7 does a run again)
	$(GO) build -o bin/brevet ./cmd/brevet
	./bin/brevet dev --prepare
	$(GO) test -c -o bin/soak.test ./tests/bench
	cd tests/bench && ../../bin/soak.test -test.run TestSoak -test.timeout 12h -soak $(or $(SOAK),1h) -every 1m -seed $(or $(SEED),0)

.PHONY: e2e
e2e: ## Have a browser approve, deny, search, revoke and prove in the console, and keep pictures of each page in .e2e (minutes)
	@./devstack/deps.sh test
	$(GO) build -o bin/brevet ./cmd/brevet
	./bin/brevet dev --prepare
	@rm -rf .e2e && mkdir .e2e
	$(GO) test -json -count=1 -timeout 20m ./console -args -shots "$(CURDIR)/.e2e" | awk -f tools/count.awk

.PHONY: assurance
assurance: SHELL := bash
assurance: .SHELLFLAGS := -o pipefail -c
assurance: ## Run all suites, keep what they end with in docs/results.txt, and write docs/assurance.md (hours)
	for suite in hostile faults canary history soak upgrade tamper conformance egress e2e; do $(MAKE) $$suite | ./tools/keep.sh $$suite docs/results.txt || exit 1; done
	$(GO) test . -count=1 -run TestAssurance -update
	@! grep -Ev ' [1-9][0-9]* passed, 0 failed$$' docs/results.txt

.PHONY: bench
bench: deps ## Measure what a credential costs, beside a login at Vault without policy or record (minutes)
	$(GO) build -o bin/brevet ./cmd/brevet
	./bin/brevet dev --prepare
	$(GO) run ./tests/bench -brevet bin/brevet

.PHONY: bench-growth
bench-growth: deps ## Measure what a credential costs as catalogue, ledger, connections and replicas grow, and under overload (30 GB, an hour)
	$(GO) build -o bin/brevet ./cmd/brevet
	./bin/brevet dev --prepare
	$(GO) run ./tests/bench -brevet bin/brevet -growth -plots docs/plots

.PHONY: bench-parts
bench-parts: deps ## Time the decision, the record, the whole way of a request, a replay and a verification (minutes)
	$(GO) test -run '^$$' -bench . -benchtime 2s ./scopes ./ledger ./server
	$(GO) test -run '^$$' -bench Replay -benchtime 1x -timeout 30m ./cmd/brevet
	$(GO) test -run '^$$' -bench Verify -benchtime 1x -timeout 30m ./tests/tamper

.PHONY: bench-audit
bench-audit: deps ## Fill a ledger with ten million issuances (20 GB, an hour), and time what auditors search for
	$(GO) test ./server -run TestSearchesAreFast -count=1 -v -timeout 4h -args -searched 10000000

.PHONY: generate
generate: ## Write again what is generated: API types, routes, the configuration reference, where promises are shown
	./openapi/generate.sh
	$(GO) test ./cmd/brevet -run TestConfigurationReference -update
	$(GO) test . -run TestAssurance -update

.PHONY: build
build: ## Build bin/brevet
	@CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o bin/brevet ./cmd/brevet

.PHONY: deps
deps: ## Install PostgreSQL where it is missing (Debian and Ubuntu)
	@./devstack/deps.sh

# Brevet. `make` lists the targets by purpose.

GO     ?= go
TOOL   := $(GO) tool -modfile=tools/go.mod
LDFLAGS := -s -w
# The packages whose tests take longest: they begin first.
LONG   := ./internal/httpapi ./internal/ledger/... ./cmd/brevet ./internal/egress ./internal/console
# The packages that serve callers concurrently: `make race` runs their tests with the race detector.
RACE   := ./internal/httpapi ./internal/ledger/... ./internal/egress ./internal/console ./internal/mint ./internal/notify/... ./attest ./broker \
	./client ./resourceserver ./scopes/... ./internal/audit ./internal/dpop ./internal/people ./internal/ratelimit ./internal/token ./internal/tokencache
# Tests that `make test` leaves to suites: those in a browser to `make e2e`, those of speed to `make speed`.
BROWSER := ^TestBrowser
SPEED   := Fast$$
# Tests that fill a file system of their own, which only root may mount: `make faults` runs them.
DISK    := FullDisk|DiskIsFull
# Tests that make a hundred thousand calls: `make egress` runs them.
LOAD    := UnderLoad$$
# The suites of `make prove`, the longest first: they test a whole deployment rather than a package. The soak takes an hour and
# runs alone.
SUITES := faults tamper history integrations upgrade e2e race conformance rotation egress hostile speed docs-run canary

.DEFAULT_GOAL := help

##@ Start

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^##@ / {printf "\n%s\n", substr($$0, 5)} /^[a-z0-9-]+:.*## / {printf "  %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: demo
demo: deps build ## Play the main job through on real servers (the first run builds Vault: minutes)
	@./bin/brevet demo

.PHONY: dev
dev: deps build ## Run a private stack to develop against, until Ctrl-C
	@./bin/brevet dev

##@ Develop

.PHONY: build
build: ## Build bin/brevet
	@CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o bin/brevet ./cmd/brevet

.PHONY: test
test: ready ## Run the tests of all packages against real servers (minutes)
	$(GO) test -p 3 -shuffle=on -count=1 -timeout 60m -skip '$(BROWSER)|$(SPEED)|$(DISK)|$(LOAD)' $(LONG) $$($(GO) list ./... | grep -v /tests/) ./tests/repo ./tests/mutants

.PHONY: race
race: ready ## Run the tests of concurrent packages with the race detector (needs a C compiler; minutes)
	$(GO) test -json -race -p 3 -shuffle=on -count=1 -timeout 60m -skip '$(BROWSER)|$(SPEED)|$(DISK)|$(LOAD)' \
		$$($(GO) list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}' $(RACE)) | awk -f tools/count.awk

.PHONY: check
check: ## Lint; check that generated code and module files are current
	$(TOOL) golangci-lint run ./...
	$(GO) mod tidy -diff
	cd internal/devstack/vaultd && $(GO) mod tidy -diff
	cd tests/integrations/gvisor && $(GO) mod tidy -diff
	./openapi/generate.sh --check
	GOOS=darwin $(GO) vet ./...
	$(GO) fix -diff ./...

.PHONY: generate
generate: ## Regenerate API types, routes, migrations/schema.sql, the configuration reference and docs/assurance.md
	./openapi/generate.sh
	$(GO) test ./migrations -run TestSchemaFileIsCurrent -update
	$(GO) test ./internal/app -run TestConfigurationReference -update
	$(GO) test ./tests/repo -run TestAssurance -update

.PHONY: recording
recording: deps build ## Record docs/demo.svg from a run of the demo
	$(GO) run -C tools ./recording -o docs/demo.svg -- bin/brevet demo

# What tests run against: the programs that they need, the binary, and Vault.
.PHONY: ready
ready:
	@./internal/devstack/deps.sh test
	$(GO) build -o bin/brevet ./cmd/brevet
	./bin/brevet dev --prepare

.PHONY: deps
deps: ## Install PostgreSQL where it is missing (Debian and Ubuntu)
	@./internal/devstack/deps.sh

##@ Prove

# Some suites compute and others wait for credentials to expire, so two run at a time. What each prints is in bin/prove-SUITE.log.
.PHONY: prove
prove: ready ## Run the suites that test a whole deployment, two at a time (half an hour)
	@mkdir -p bin && rm -f bin/prove-*.log
	@printf '%s\n' $(SUITES) | xargs -P 2 -I{} sh -c 'echo "{}: begins"; $(MAKE) --no-print-directory -o ready {} >bin/prove-{}.log 2>&1; \
		code=$$?; echo "{}: $$(tail -n 1 bin/prove-{}.log)"; if [ $$code != 0 ]; then sed "s/^/{}: /" bin/prove-{}.log; exit 1; fi'

.PHONY: docs-run
docs-run: ready ## Run each command that README and docs show, twice, against `brevet dev` (a minute)
	$(GO) test -json -count=1 -timeout 20m ./tests/docs | awk -f tools/count.awk

.PHONY: hostile
hostile: ready ## Send the hostile inputs H1 to H107 to two replicas (minutes)
	$(GO) test -c -o bin/hostile.test ./tests/hostile
	cd tests/hostile && ../../bin/hostile.test -test.timeout 45m

.PHONY: neighbours
neighbours: ready ## Let one tenant be loud in many ways, and measure what others wait (five minutes)
	$(GO) test -json -count=1 -timeout 20m ./tests/neighbours | awk -f tools/count.awk

.PHONY: mutants
mutants: ready ## Break each promise of SECURITY.md by a small change; check that its test fails: CLAIMS='I.*' (a quarter of an hour)
	$(GO) test -c -o bin/mutants.test ./tests/mutants
	cd tests/mutants && ../../bin/mutants.test -test.timeout 90m -test.run TestMutantsAreKilled -test.parallel 2 -kill -claims '$(CLAIMS)'

.PHONY: canary
canary: ready ## Search logs, files, traces, metrics and the database for leaked secrets (a minute)
	$(GO) test -json -count=1 ./tests/canary | awk -f tools/count.awk

.PHONY: tamper
tamper: ready ## Change a ledger in every way its database owner can; check that auditors find it (minutes)
	$(GO) test -c -o bin/tamper.test ./tests/tamper
	cd tests/tamper && ../../bin/tamper.test -test.timeout 60m -all

# The version that make upgrade begins with: FROM=ref, or else the last one without the newest migration. If that version has other
# migrations besides, it comes before the baseline: then HEAD.
NEWEST = $(lastword $(sort $(wildcard migrations/0*.sql)))
BEFORE = $(or $(FROM),$(shell before=$$(git log -1 --diff-filter=A --format=%H^ -- $(NEWEST)) && \
	git diff --quiet $$before -- 'migrations/0*.sql' ':!$(NEWEST)' && echo $$before),HEAD)
.PHONY: upgrade
upgrade: ready ## Migrate two replicas under load to this version and back: FROM=ref (minutes)
	$(GO) test -c -o bin/upgrade.test ./tests/upgrade
	@tmp=$$(mktemp -d) && trap 'rm -rf "$$tmp"' EXIT && git archive $(BEFORE) >"$$tmp/tar" && mkdir "$$tmp/tree" && tar -xf "$$tmp/tar" -C "$$tmp/tree" && \
		(cd "$$tmp/tree" && $(GO) build -o ../brevet ./cmd/brevet) && \
		cd tests/upgrade && ../../bin/upgrade.test -test.timeout 45m -from "$$tmp/brevet" -from-name "$$(git rev-parse --short $(BEFORE))"

.PHONY: rotation
rotation: ready ## Keep long-lived clients at work while SVIDs and authorities rotate (four minutes)
	$(GO) test -json -count=1 -timeout 30m ./tests/rotation -load 3m -svid-ttl 10s -authority-ttl 75s | awk -f tools/count.awk

SEEDS ?= 100
.PHONY: history
history: ready ## Compare what concurrent callers saw during failures with a model: SEEDS=100 (ten minutes)
	$(GO) test -c -o bin/history.test ./tests/history
	cd tests/history && ../../bin/history.test -test.timeout 60m -seeds $(SEEDS)

.PHONY: faults
faults: ready ## Break replicas, Vault and PostgreSQL at every crash point; write docs/faults.md (ten minutes)
	@rm -f docs/faults.md
	$(GO) test -count=1 -run '$(DISK)' ./internal/ledger ./internal/console
	$(GO) test -c -o bin/faults.test ./tests/faults
	cd tests/faults && ../../bin/faults.test -test.timeout 90m -test.parallel 64 -all -issuances 10000 -kill-every 20s -matrix ../../docs/faults.md

OAUTH := Grant|Introspection|Tokens|Revoking|ResponsesAreUniform|OneShot|Exchange|Metadata|ClientCredentials|Curl|KindOfToken|Proof|Key|TestCheck|ParseObject|TestNginx|Jose|StatusList
.PHONY: conformance
conformance: ready ## Hold the OAuth API to its specifications, with clients and verifiers of other projects (minutes)
	{ $(GO) test -json -count=1 ./internal/jws ./internal/token ./internal/dpop; $(GO) test -json -count=1 -timeout 20m -run '$(OAUTH)' ./internal/httpapi; } | awk -f tools/count.awk

.PHONY: egress
egress: ready ## Try to get around the egress gateway; run common tools through it (minutes)
	{ $(GO) test -json -count=1 -timeout 20m ./internal/egress ./internal/confine; $(GO) test -json -count=1 -timeout 20m -run TestEgress ./cmd/brevet; } | awk -f tools/count.awk

.PHONY: integrations
integrations: ready ## Use GitHub, clouds and model APIs with their official clients and in sandboxes, against strict doubles (the first run builds gVisor; minutes)
	$(GO) test -json -count=1 -timeout 20m ./tests/integrations | awk -f tools/count.awk

.PHONY: e2e
e2e: ready ## Use the console in a real browser; keep pictures of each page in .e2e (minutes)
	@rm -rf .e2e && mkdir .e2e
	$(GO) test -json -count=1 -timeout 20m ./internal/console -args -shots "$(CURDIR)/.e2e" -paged 100000 | awk -f tools/count.awk

.PHONY: speed
speed: ready ## Check that searches and counts stay fast among many records (minutes)
	$(GO) test -json -count=1 -timeout 20m -run '$(SPEED)' ./internal/ledger ./internal/ledger/search ./internal/httpapi | awk -f tools/count.awk

.PHONY: soak
soak: ready ## Run two replicas for an hour with a fault each minute: SOAK=1h SEED=7
	$(GO) test -c -o bin/soak.test ./tests/bench
	cd tests/bench && ../../bin/soak.test -test.run TestSoak -test.timeout 12h -soak $(or $(SOAK),1h) -every 1m -seed $(or $(SEED),0)

.PHONY: assurance
assurance: SHELL := bash
assurance: .SHELLFLAGS := -o pipefail -c
assurance: ## Run all suites and the soak; write docs/results.txt and docs/assurance.md (hours)
	for suite in $(SUITES) neighbours mutants soak; do $(MAKE) $$suite | ./tools/keep.sh $$suite docs/results.txt || exit 1; done
	$(GO) test ./tests/repo -count=1 -run TestAssurance -update
	@! grep -Ev ' [1-9][0-9]* passed, 0 failed$$' docs/results.txt

##@ Measure

.PHONY: bench
bench: ready ## Measure what a credential costs, compared with a plain Vault login (minutes)
	$(GO) run ./tests/bench -brevet bin/brevet

.PHONY: bench-peers
bench-peers: ready ## Compare tokens with those of Vault, and of ZeroID and AgentWrit if they are in the PATH (minutes)
	$(GO) run ./tests/bench -brevet bin/brevet -peers

.PHONY: bench-parts
bench-parts: deps ## Time the decision, the append, one request, a replay and a verification (minutes)
	$(GO) test -run '^$$' -bench . -benchtime 2s ./scopes/... ./internal/ledger ./internal/httpapi
	$(GO) test -run '^$$' -bench Replay -benchtime 1x -timeout 30m ./cmd/brevet
	$(GO) test -run '^$$' -bench Verify -benchtime 1x -timeout 30m ./tests/tamper

.PHONY: bench-growth
bench-growth: ready ## Measure growth of catalogue, ledger, connections and replicas, and overload (30 GB, an hour)
	$(GO) run ./tests/bench -brevet bin/brevet -growth -plots docs/plots

.PHONY: bench-audit
bench-audit: deps ## Fill a ledger with ten million issuances and time searches (20 GB, an hour)
	$(GO) test ./internal/httpapi -run TestSearchesAreFast -count=1 -v -timeout 4h -args -searched 10000000

##@ Release

# What tells of known vulnerabilities: an address, or file:// and a folder with a copy.
VULNDB ?= https://vuln.go.dev
.PHONY: supply
supply: reproducible vuln ## Check that the build is reproducible, list licences, look for known vulnerabilities (minutes)
	$(GO) test ./tests/repo -count=1 -run TestLicences -args -sbom $(CURDIR)/bin/brevet.cdx.json -notices $(CURDIR)/bin/brevet.notices.txt
	@echo "bin/brevet.cdx.json and bin/brevet.notices.txt go with the binary"

.PHONY: reproducible
reproducible: ## Build the last commit twice, in two folders, and compare (minutes)
	@tmp=$$(mktemp -d) && trap 'rm -rf "$$tmp"' EXIT && \
		git clone -q . "$$tmp/one" && git clone -q . "$$tmp/and/another/one" && \
		$(MAKE) -s -C "$$tmp/one" build && GOCACHE="$$tmp/cache" $(MAKE) -s -C "$$tmp/and/another/one" build && \
		cmp "$$tmp/one/bin/brevet" "$$tmp/and/another/one/bin/brevet" && sha256sum <"$$tmp/one/bin/brevet" | sed 's/-/the same twice/'

.PHONY: vuln
vuln: ## Look for known vulnerabilities that the binary can reach (needs the network, or VULNDB=file:///a/copy)
	$(TOOL) govulncheck -db $(VULNDB) ./cmd/brevet

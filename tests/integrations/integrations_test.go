package integrations_test

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/brevet-dev/brevet/internal/testkit/federation"
	"github.com/brevet-dev/brevet/internal/testkit/githubapi"
	"github.com/brevet-dev/brevet/openapi"
	"github.com/brevet-dev/brevet/scopes"
)

// The two ways in which a program uses a credential.
const (
	own    = "own format"
	egress = "through egress"
)

// program is an official client.
type program struct {
	name string
	// system is github, or one of systems. scope is the middle of the scope's name: github.SCOPE.read or cloud.SYSTEM.use.
	system, scope string
	run           string   // the command
	flags         []string // of the own format
	env           []string
	// old is the command with the credential that the program had at first, whose files save has kept in $KEPT.
	save, old string
	ways      []string
	// says is what a call returns that works, unless it is the content of a.txt.
	says string
}

// node runs a script of testdata. Through egress, fetch uses the proxy of the environment.
func node(script string) string {
	return `NODE_OPTIONS="${HTTPS_PROXY:+--import file://$DATA/proxy.mjs}" node "$DATA/` + script + `"`
}

const (
	tokenFile = `TOKEN_FILE=${TOKEN_FILE:-$BREVET_DIR/token} `
	curl      = `set -- -s -o body -w '%{http_code}'; [ "$WAY" = egress ] || set -- "$@" -H "Authorization: Bearer $(cat "${TOKEN_FILE:-$BREVET_DIR/token}")"; ` +
		`code=$(curl "$@" "$GITHUB/repos/acme/$TARGET/issues"); if [ "$code" = 200 ]; then echo "ok $(jq -r '.[].title' body)"; else echo "error $code"; fi`
	git = `if git clone -q "$GITHUB/acme/$TARGET.git" "clone-$(date +%N)" 2>said; then echo ok; else grep -qiE '403|401|Authentication failed|could not read Username' said && echo "error refused" || { grep -qi 'not found' said && echo "error 404" || { cat said >&2; echo "error $(sed -nE 's/.*returned error: ([0-9]+).*/\1/p' said | head -n 1)"; }; }; fi`
	gh  = `if gh api "repos/acme/$TARGET/issues" --jq '.[].title' >out 2>said; then echo "ok $(cat out)"; else echo "error $(sed -nE 's/.*\(HTTP ([0-9]+)\).*/\1/p' said | head -n 1)"; cat said >&2; fi`
)

func (w *world) programs() []program {
	both := []string{own, egress}
	file := []string{"--file", "token=token"}
	keepToken, withToken := `cp "$BREVET_DIR/token" "$KEPT/token"`, `export TOKEN_FILE="$KEPT/token"; `
	hub := hostOf(w.github())
	return []program{
		{name: "octokit", system: "github", scope: "issues", run: tokenFile + node("octokit.cjs"), flags: file, save: keepToken, old: withToken, ways: both},
		{name: "octokit graphql", system: "github", scope: "issues", run: tokenFile + node("graphql.cjs"), flags: file, save: keepToken, old: withToken, ways: both},
		{name: "curl", system: "github", scope: "issues", run: curl, flags: file, save: keepToken, old: withToken, ways: both},
		// Go programs use no proxy for a host of the loopback address.
		{name: "gh", system: "github", scope: "issues", run: gh, flags: []string{"--for", "gh=" + hub}, save: `cp -r "$GH_CONFIG_DIR" "$KEPT/gh"`, old: `export GH_CONFIG_DIR="$KEPT/gh"; `, ways: []string{own}},
		{
			name: "git", system: "github", scope: "code", run: git, flags: []string{"--for", "gh=" + hub}, save: `cp "$GH_CONFIG_DIR/git-credential" "$KEPT/git"`,
			old: `export GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=credential.helper GIT_CONFIG_VALUE_0="!cat '$KEPT/git' #"; `, ways: both,
		},
		{name: "aws sdk for javascript", system: "aws", run: node("aws.cjs"), flags: []string{"--for", "aws"}, save: `cp "$AWS_WEB_IDENTITY_TOKEN_FILE" "$KEPT/token"`, old: `export AWS_WEB_IDENTITY_TOKEN_FILE="$KEPT/token"; `, ways: both},
		// Another role is one that does not trust the subject, or does not exist. For the other clients of AWS it is a role without the right.
		{
			name: "aws sts sdk for javascript", system: "aws", run: node("sts.cjs"), flags: []string{"--for", "aws"}, says: "ok arn:aws:sts::123456789012:assumed-role/site/",
			save: `cp "$AWS_WEB_IDENTITY_TOKEN_FILE" "$KEPT/token"`, old: `export AWS_WEB_IDENTITY_TOKEN_FILE="$KEPT/token"; `, ways: []string{own},
		},
		// Debian's boto3 takes the address of STS from no variable: a proxy leads it to the address that AWS publishes.
		{name: "boto3", system: "aws", run: `HTTPS_PROXY="${HTTPS_PROXY:-$NAMES}" python3 "$DATA/s3.py"`, flags: []string{"--for", "aws"}, save: `cp "$AWS_WEB_IDENTITY_TOKEN_FILE" "$KEPT/token"`, old: `export AWS_WEB_IDENTITY_TOKEN_FILE="$KEPT/token"; `, ways: both},
		{
			name: "google-auth-library", system: "google", run: node("google.cjs"), flags: []string{"--for", "google"}, save: `d=$(dirname "$GOOGLE_APPLICATION_CREDENTIALS"); for f in "$d"/*; do sed "s#$d/#$KEPT/#g" "$f" >"$KEPT/$(basename "$f")"; done`,
			old: `export GOOGLE_APPLICATION_CREDENTIALS="$KEPT/$(basename "$GOOGLE_APPLICATION_CREDENTIALS")"; `, ways: both,
		},
		{name: "@azure/identity", system: "azure", run: node("azure.cjs"), flags: []string{"--for", "azure"}, save: `cp "$AZURE_FEDERATED_TOKEN_FILE" "$KEPT/token"`, old: `export AZURE_FEDERATED_TOKEN_FILE="$KEPT/token"; `, ways: both},
		{name: "@anthropic-ai/sdk", system: "anthropic", run: node("anthropic.cjs"), flags: []string{"--for", "anthropic"}, save: `cp "$ANTHROPIC_IDENTITY_TOKEN_FILE" "$KEPT/token"`, old: `export ANTHROPIC_IDENTITY_TOKEN_FILE="$KEPT/token"; `, ways: both},
		{name: "openai", system: "openai", run: tokenFile + node("openai.cjs"), flags: []string{"--file", "token"}, save: keepToken, old: withToken, ways: both},
	}
}

// attempt is one run of a program in one way.
type attempt struct {
	*world
	program
	way, task string
	// sandbox is its SPIFFE ID, and socket its Workload API. Each attempt has its own, because the rate of one sandbox is limited.
	sandbox, socket string
}

func (a attempt) github() bool { return a.system == "github" }

// content is what a call returns that works.
func (a attempt) content() string {
	switch {
	case a.name == "git":
		return "ok"
	case a.says != "":
		return a.says
	}
	return "ok content of a.txt"
}

// exec runs a script with the credential of a scope, whose name ends in suffix. TARGET is the repository, the bucket or the model.
func (a attempt) exec(t *testing.T, suffix, script string, env ...string) result {
	t.Helper()
	var flags []string
	target := "site"
	if a.github() {
		flags, target = []string{"--scope", "github." + a.scope + "." + suffix, "--param", "repo=api"}, "api"
	} else {
		flags = []string{"--scope", "cloud." + a.system + "." + suffix}
	}
	if a.way == egress {
		flags = append([]string{"--egress", "--host-ca", a.roots, "--allow-private", "127.0.0.1/32"}, flags...)
	} else {
		flags = append(flags, a.flags...)
	}
	if a.way == egress {
		script = "unset NO_PROXY no_proxy; " + script // the other systems are on localhost
	}
	env = append(append([]string{"TARGET=" + target, "KEPT=" + t.TempDir()}, a.env...), env...)
	if a.way == egress {
		env = append(env, "WAY=egress")
	}
	return a.world.exec(t, a.socket, a.task, env, flags, script)
}

// usual is the suffix of the scope that works.
func (a attempt) usual() string {
	if a.github() {
		return "read"
	}
	return "use"
}

// condition is what a row tries. alone means that it changes how another system behaves, so that no other row may run.
type condition struct {
	name  string
	alone bool
	fits  func(a attempt) bool
	try   func(t *testing.T, a attempt)
}

var conditions = []condition{
	{name: "allowed", try: allowed},
	{name: "another repository or role", try: elsewhere},
	{name: "after task end", try: afterTaskEnd},
	{name: "after TTL", try: afterTTL},
	{name: "wrong audience", fits: func(a attempt) bool { return !a.github() }, try: wrongAudience},
	{name: "far side down", alone: true, try: farSideDown},
	{name: "far side slow", alone: true, try: farSideSlow},
	{name: "answer lost", alone: true, try: answerLost},
	// A client that exchanges a token itself takes what it gets. Entra and OpenAI do not say what a token is for.
	{name: "grant wider than asked", alone: true, fits: func(a attempt) bool {
		return a.github() || (a.system == "aws" || a.system == "google") && a.way == egress
	}, try: grantWider},
}

// TestClients tries each client in each way under each condition.
func TestClients(t *testing.T) {
	w := newWorld(t)
	for _, alone := range []bool{false, true} {
		t.Run(map[bool]string{false: "side by side", true: "one at a time"}[alone], func(t *testing.T) {
			for _, p := range w.programs() {
				for _, way := range p.ways {
					for _, c := range conditions {
						name := p.name + "/" + way + "/" + c.name
						id := strings.NewReplacer(" ", "-", "/", ".", "@", "").Replace(name)
						a := attempt{world: w, program: p, way: way, task: id, sandbox: agents + id}
						if c.alone != alone || c.fits != nil && !c.fits(a) {
							continue
						}
						t.Run(name, func(t *testing.T) {
							if !alone {
								t.Parallel()
							}
							a.socket = w.workloadAPI(t, a.sandbox)
							c.try(t, a)
							a.wantNoSecret(t)
						})
					}
				}
			}
		})
	}
	w.wantNothingUnrecorded(t)
	w.wantExchangesRecorded(t)
}

// allowed runs a program twice. Meanwhile a token of GitHub is alive, so that its grant can be read.
func allowed(t *testing.T, a attempt) {
	if !a.github() {
		a.exec(t, a.usual(), a.run).want(t, a.content())
		return
	}
	env := meanwhile(t, func() { a.wantGranted(t) })
	a.exec(t, a.usual(), again(a.run, a.run), env).want(t, a.content(), a.content())
	a.wantEnded(t)
}

// wantGranted checks that GitHub has granted the tokens of the task exactly the repository and the permission that the scope names.
// GitHub adds the permission to read metadata to every token.
func (a attempt) wantGranted(t *testing.T) {
	t.Helper()
	permission := map[string]string{"issues": "issues", "code": "contents"}[a.scope]
	want := map[string]string{permission: "read", "metadata": "read"}
	tokens := a.alive(t)
	if len(tokens) == 0 {
		t.Error("GitHub has no token alive whose name the records say")
	}
	for _, token := range tokens {
		grant := token.Grant
		if !slices.Equal(grant.Repositories, []string{"acme/api"}) || !maps.Equal(grant.Permissions, want) || grant.Installation != testkit.GitHubInstallation {
			t.Errorf("GitHub granted %v on %v, want %v on acme/api", grant.Permissions, grant.Repositories, want)
		}
	}
}

// alive returns the tokens of GitHub that are alive and belong to the task, by the names that its records have.
func (a attempt) alive(t *testing.T) []githubapi.Token {
	t.Helper()
	page, err := a.stack.Client(t, auditor).Page(t.Context(), client.Filter{Task: a.task, Limit: 50})
	if err != nil {
		t.Error(err)
		return nil
	}
	return slices.DeleteFunc(a.hub.Live(), func(token githubapi.Token) bool {
		return !slices.ContainsFunc(page.Issuances, func(one openapi.Issuance) bool { return one.Credential.Name == token.Hashed })
	})
}

// wantEnded checks that the task has records, and that each says that its credential has ended.
func (a attempt) wantEnded(t *testing.T) {
	t.Helper()
	page := a.statuses(t, a.task)
	if len(page) == 0 || slices.ContainsFunc(page, func(s openapi.Status) bool { return s != openapi.StatusReleased && s != openapi.StatusRevoked }) {
		t.Errorf("the records say %v", page)
	}
}

func elsewhere(t *testing.T, a attempt) {
	other := map[string]string{"github": "docs", "aws": "other", "google": "other", "azure": "other", "anthropic": "other", "openai": "other"}[a.system]
	got := a.exec(t, a.usual(), "TARGET="+other+"; export TARGET; "+a.run)
	switch {
	case a.name == "octokit graphql": // GraphQL answers 200 with an error
		got.want(t, "error ...")
	case a.github(), a.system == "anthropic", a.system == "openai":
		got.want(t, "error 404")
	default:
		got.want(t, "error 403")
	}
}

// again is a script that runs a program, waits for the test, and goes on with another script.
func again(first, then string) string {
	return first + `; touch "$AGAIN.ready"; while [ ! -e "$AGAIN.go" ]; do sleep 0.05; done; ` + then
}

// meanwhile runs do while such a script waits.
func meanwhile(t *testing.T, do func()) (env string) {
	t.Helper()
	name := filepath.Join(t.TempDir(), "again")
	ended := t.Context().Done()
	go func() {
		for {
			if _, err := os.Stat(name + ".ready"); err == nil {
				break
			}
			select {
			case <-ended:
				return
			case <-time.After(20 * time.Millisecond):
			}
		}
		do()
		_ = os.WriteFile(name+".go", nil, 0o600)
	}()
	return "AGAIN=" + name
}

func afterTaskEnd(t *testing.T, a attempt) {
	suffix := a.usual()
	if a.way == own && !a.github() {
		suffix = "brief" // a cloud does not learn that the task has ended: it accepts the token until it expires
	}
	env := meanwhile(t, func() {
		if a.github() {
			a.wantDeadWithin(t, 2*time.Second, func() { a.endTask(t, a.sandbox, a.task) })
		} else {
			a.endTask(t, a.sandbox, a.task)
		}
		switch {
		case a.way == own && !a.github():
			time.Sleep(briefly(a.system) + time.Second)
		case a.way == egress:
			time.Sleep(time.Second) // within which a gateway refuses
		}
	})
	got := a.exec(t, suffix, again(a.run, a.run), env)
	switch {
	case a.name == "git": // says only that it was refused
		got.want(t, a.content(), "error refused")
	case a.way == egress: // the gateway refuses: GitHub would answer 401, and a cloud would still accept its credential
		got.want(t, a.content(), "error 403")
	case a.github():
		got.want(t, a.content(), "error 401")
	default:
		got.want(t, a.content(), "error ...")
	}
}

// wantDeadWithin checks that GitHub refuses all tokens of the task within a time after end begins.
func (a attempt) wantDeadWithin(t *testing.T, limit time.Duration, end func()) {
	t.Helper()
	if len(a.alive(t)) == 0 {
		t.Error("no token of the task is alive before its end")
	}
	began := time.Now()
	end()
	for len(a.alive(t)) > 0 {
		if time.Since(began) > limit {
			t.Errorf("GitHub accepts a token of the task %s after its end began", time.Since(began))
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func afterTTL(t *testing.T, a attempt) {
	wait := fmt.Sprintf("; sleep %d; ", int(briefly(a.system).Seconds())+1)
	if a.way == egress { // the gateway gets the next credential. A cloud accepts each token once, so it has to be another one.
		before := a.clouds.Exchanges()
		a.exec(t, "brief", a.run+wait+a.run).want(t, a.content(), a.content())
		if n := len(a.statuses(t, a.task)); n < 2 {
			t.Errorf("got %d issuances, want a second one", n)
		}
		if !a.github() && a.clouds.Exchanges() < before+2 {
			t.Error("the second token was not exchanged")
		}
		return
	}
	refused := "error ..."
	if a.github() && a.name != "git" { // git says only that it was refused
		refused = "error 401"
	}
	a.exec(t, "brief", a.save+`; `+a.run+wait+a.old+a.run).want(t, a.content(), refused)
}

func wrongAudience(t *testing.T, a attempt) {
	a.exec(t, "wrong", a.run).want(t, "error ...")
}

func farSideDown(t *testing.T, a attempt) {
	if a.github() {
		a.hub.Behave(githubapi.Behaviour{Unreachable: true})
		defer a.hub.Behave(githubapi.Behaviour{})
	} else {
		a.clouds.Set(federation.Faults{Down: true})
		defer a.clouds.Set(federation.Faults{})
	}
	got := a.exec(t, a.usual(), a.run)
	a.wantRefusal(t, got, "GitHub unavailable")
}

// wantRefusal checks what becomes of a program whose credential cannot be issued or exchanged.
func (a attempt) wantRefusal(t *testing.T, got result, title string) {
	t.Helper()
	if a.github() && a.way == own { // without its credential the program does not run
		if got.failed == nil || got.out != "" || !strings.Contains(got.err, title) {
			t.Errorf("got %v with %q and %q, want %q", got.failed, got.out, got.err, title)
		}
		return
	}
	got.want(t, "error ...")
}

func farSideSlow(t *testing.T, a attempt) {
	const delay = time.Second
	if a.github() {
		a.hub.Behave(githubapi.Behaviour{Delay: delay})
		defer a.hub.Behave(githubapi.Behaviour{})
	} else {
		a.clouds.Set(federation.Faults{Slow: delay})
		defer a.clouds.Set(federation.Faults{})
	}
	a.exec(t, a.usual(), a.run).want(t, a.content())
}

// answerLost loses the answer with the first token. What nobody has is recorded, and the next attempt works.
func answerLost(t *testing.T, a attempt) {
	if a.github() {
		a.hub.Behave(githubapi.Behaviour{LoseAnswer: true, For: githubapi.CreatesToken, Times: 1})
		got := a.exec(t, a.usual(), a.run)
		a.hub.Behave(githubapi.Behaviour{})
		a.wantRefusal(t, got, "GitHub unavailable")
		if got := a.statuses(t, a.task); !slices.Contains(got, openapi.StatusUnknown) {
			t.Errorf("the records say %v, want one that does not know", got)
		}
	} else {
		a.clouds.Set(federation.Faults{Lost: 1})
		a.exec(t, a.usual(), a.run) // some clients exchange again
		a.clouds.Set(federation.Faults{})
	}
	a.exec(t, a.usual(), a.run).want(t, a.content())
}

func grantWider(t *testing.T, a attempt) {
	if !a.github() {
		a.clouds.Set(federation.Faults{Wider: true})
		defer a.clouds.Set(federation.Faults{})
		a.exec(t, a.usual(), a.run).want(t, "error ...")
		return
	}
	before := len(a.hub.Live())
	a.hub.Behave(githubapi.Behaviour{OtherGrant: func(g *githubapi.Grant) { g.Repositories = append(g.Repositories, "acme/docs") }})
	got := a.exec(t, a.usual(), a.run)
	a.hub.Behave(githubapi.Behaviour{})
	a.wantRefusal(t, got, "Credential mismatch")
	if after := len(a.hub.Live()); after != before {
		t.Errorf("%d tokens are alive at GitHub, %d before", after, before)
	}
}

// wantNoSecret checks that the last program of a gateway got none of the secrets of the other systems.
func (a attempt) wantNoSecret(t *testing.T) {
	t.Helper()
	if a.way == own {
		return
	}
	script := `env; find "$BREVET_DIR" "$HOME" -type f -exec cat {} +`
	got := a.exec(t, a.usual(), a.run+` >/dev/null 2>&1; `+script)
	tokens, gave := a.clouds.Secrets()
	for _, secret := range slices.Concat(tokens, gave) {
		if strings.Contains(got.out, secret) {
			t.Error("the program of a gateway finds a secret")
		}
	}
	if strings.Contains(got.out, "ghs_") {
		t.Error("the program of a gateway finds a token of GitHub")
	}
}

// wantNothingUnrecorded checks that each token of GitHub that is alive has a record that says so.
func (w *world) wantNothingUnrecorded(t *testing.T) {
	t.Helper()
	var lost int
	for began := time.Now(); ; time.Sleep(100 * time.Millisecond) {
		lost = len(w.hub.Live())
		if lost == w.unknown(t) || time.Since(began) > 10*time.Second {
			break
		}
	}
	if known := w.unknown(t); lost != known {
		t.Errorf("%d tokens are alive at GitHub, and %d records say that one may be", lost, known)
	}
}

// wantExchangesRecorded checks that each credential that a cloud made came from a token that has a record, also if its answer was lost.
func (w *world) wantExchangesRecorded(t *testing.T) {
	t.Helper()
	made := w.clouds.Made()
	if len(made) == 0 {
		t.Error("no cloud has made a credential")
	}
	for _, one := range made {
		if _, err := w.stack.Client(t, auditor).Issuance(t.Context(), one.ID); err != nil {
			t.Errorf("the credential of %s has no record of its token %q: %v", one.Of, one.ID, err)
		}
	}
}

// unknown counts the records that say that a token of GitHub may be alive.
func (w *world) unknown(t *testing.T) int {
	t.Helper()
	n := 0
	for _, status := range []openapi.Status{openapi.StatusUnknown, openapi.StatusRevoking, openapi.StatusIssued} {
		page, err := w.stack.Client(t, auditor).Page(t.Context(), client.Filter{Status: status, Limit: 500})
		if err != nil {
			t.Fatal(err)
		}
		for _, one := range page.Issuances {
			if one.Credential.Kind == scopes.KindGitHub {
				n++
			}
		}
	}
	return n
}

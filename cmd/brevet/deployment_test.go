package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/internal/app"
	"github.com/brevet-dev/brevet/internal/devstack/local"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/jackc/pgx/v5"
	"go.yaml.in/yaml/v4"
)

// deployment is a dev stack whose servers belong to the test, so that it can stop them. The broker is a separate process,
// as in production.
type deployment struct {
	*local.Stack
	config string     // the configuration of the broker
	t      *testing.T // the deployment ends with it
	cfg    app.Config
	vault  *gate
	broker *process
	// logs are the logs of every broker of this deployment.
	logs []*stream

	mu     sync.Mutex
	tokens []string // every token that was received
}

func deploy(t *testing.T) *deployment {
	t.Helper()
	stack, err := local.Start(t.Context(), local.Config{Dir: t.TempDir() + "/state", Progress: func(string) {}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := stack.Close(); err != nil {
			t.Error(err)
		}
	})
	d := &deployment{Stack: stack, t: t, vault: newGate(t, stack.Vault.Addr())}
	if d.cfg, err = app.Load(stack.ConfigFile); err != nil {
		t.Fatal(err)
	}
	d.cfg.Vault.Address = d.vault.URL
	d.cfg.Log = app.LogConfig{Level: "debug", Format: "json"}
	d.serve(t)
	return d
}

// configure writes a changed copy of the configuration beside the stack's own, and returns its path.
func (d *deployment) configure(t *testing.T, change func(*app.Config)) string {
	t.Helper()
	cfg := d.cfg
	change(&cfg)
	data, err := yaml.Dump(cfg)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "brevet.yaml")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// serve starts the broker, and returns when it is serving.
func (d *deployment) serve(t *testing.T) {
	t.Helper()
	d.config = d.Path("serve.yaml")
	data, err := yaml.Dump(d.cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(d.config, data, 0o600); err != nil {
		t.Fatal(err)
	}
	d.broker = launch(d.t, nil, "serve", "--config", d.config)
	d.logs = append(d.logs, d.broker.err)
	d.broker.waitFor(t, d.broker.err, `"msg":"serving"`)
}

func (d *deployment) env(workload string) []string {
	var env []string
	for _, pair := range d.Environment(workload) {
		env = append(env, pair[0]+"="+pair[1])
	}
	return env
}

// ask starts a request of the research agent.
func (d *deployment) ask(t *testing.T, task string, flags ...string) *process {
	t.Helper()
	args := append([]string{"request", "github.issues.read", "repo=acme/api", "--task", task}, flags...)
	return launch(t, d.env("research"), args...)
}

// request requests a token and waits for the response. It keeps the token, to compare it with the record later.
func (d *deployment) request(t *testing.T, task string, flags ...string) result {
	t.Helper()
	return d.keep(d.ask(t, task, flags...).finish(t))
}

func (d *deployment) keep(got result) result {
	d.mu.Lock()
	defer d.mu.Unlock()
	if token := strings.TrimSpace(got.out); strings.Count(token, ".") == 2 {
		d.tokens = append(d.tokens, token)
	}
	return got
}

// records returns the records of a task as the auditor sees them.
func (d *deployment) records(t *testing.T, task string) []map[string]any {
	t.Helper()
	got := brevet(t, d.env("auditor"), "audit", "list", "--task", task, "--output", "json")
	got.want(t, 0)
	return objects(t, got.out)
}

// adminURL returns the URL of the owner's connection to the schema.
func (d *deployment) adminURL(t *testing.T) string {
	t.Helper()
	admin, err := url.Parse(d.Postgres.TCPURL())
	if err != nil {
		t.Fatal(err)
	}
	query := admin.Query()
	query.Set("search_path", "brevet")
	admin.RawQuery = query.Encode()
	return admin.String()
}

// everyTokenIsRecorded checks I1: every received token is in the record, with the digest of exactly its claims.
func (d *deployment) everyTokenIsRecorded(t *testing.T) {
	t.Helper()
	conn := testkit.Connect(t, d.adminURL(t))
	for _, token := range d.tokens {
		payload, err := base64.RawURLEncoding.DecodeString(strings.Split(token, ".")[1])
		if err != nil {
			t.Fatal(err)
		}
		var claims struct {
			ID string `json:"jti"`
		}
		if err := json.Unmarshal(payload, &claims); err != nil {
			t.Fatal(err)
		}
		digest := sha256.Sum256(payload)
		var recorded []byte
		err = conn.QueryRow(t.Context(), `SELECT claims_digest FROM issuances WHERE id = $1 AND status = 'issued'`, claims.ID).Scan(&recorded)
		if err != nil || !bytes.Equal(recorded, digest[:]) {
			t.Errorf("token %s: got digest %x, %v in the record, want %x", claims.ID, recorded, err, digest)
		}
	}
	testkit.CheckLedger(t, d.adminURL(t))
}

// kept is one item that outlives a request.
type kept struct {
	where string
	what  []byte
}

// everythingKept returns all logs, the tables, and every file of the stack, including the database's write-ahead log.
func (d *deployment) everythingKept(t *testing.T) []kept {
	t.Helper()
	var all []kept
	for _, log := range d.logs {
		all = append(all, kept{"log of the broker", []byte(log.String())})
	}
	rows, err := testkit.Connect(t, d.adminURL(t)).Query(t.Context(), `
		SELECT 'entry ' || index, body FROM entries
		UNION ALL SELECT 'issuance ' || id, convert_to(i::text, 'UTF8') FROM issuances AS i`)
	if err != nil {
		t.Fatal(err)
	}
	var next kept
	if _, err := pgx.ForEachRow(rows, []any{&next.where, &next.what}, func() error {
		all = append(all, kept{next.where, bytes.Clone(next.what)})
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	err = filepath.WalkDir(d.Dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(path)
		all = append(all, kept{path, data})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// whereabouts lists the items that contain a text.
func whereabouts(all []kept, text string) []string {
	var found []string
	for _, k := range all {
		if bytes.Contains(k.what, []byte(text)) {
			found = append(found, k.where)
		}
	}
	return found
}

// svid returns a JWT-SVID of the research agent.
func (d *deployment) svid(t *testing.T, audience string) string {
	t.Helper()
	token, err := d.Issuer.JWTSVID(local.ID("research"), audience)
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// gate is a proxy before Vault. It can hold back requests for signatures, so that a test knows when a request is in
// progress.
type gate struct {
	*httptest.Server
	// arrived receives a value for each request for a signature.
	arrived chan struct{}

	mu   sync.Mutex
	open chan struct{} // closed while signatures pass
}

func newGate(t *testing.T, vault string) *gate {
	t.Helper()
	target, err := url.Parse(vault)
	if err != nil {
		t.Fatal(err)
	}
	g := &gate{arrived: make(chan struct{}, 1000), open: make(chan struct{})}
	close(g.open)
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) },
		// Ignore failed responses to callers that have gone, or from a Vault that a test has stopped.
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) },
	}
	g.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/transit/sign/brevet") {
			g.arrived <- struct{}{}
			g.mu.Lock()
			open := g.open
			g.mu.Unlock()
			<-open
		}
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(g.Close)
	return g
}

// shut holds back requests for signatures until the returned function is called.
func (g *gate) shut() (release func()) {
	for {
		select {
		case <-g.arrived: // from earlier requests
			continue
		default:
		}
		break
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.open = make(chan struct{})
	return sync.OnceFunc(func() { close(g.open) })
}

// await returns when a signature has been requested since the gate was shut.
func (g *gate) await(t *testing.T) {
	t.Helper()
	select {
	case <-g.arrived:
	case <-time.After(patience):
		t.Fatalf("waited %s for a call to Vault for a signature", patience)
	}
}

func (p *process) kill(t *testing.T) {
	t.Helper()
	p.signal(t, syscall.SIGKILL)
	<-p.ended
}

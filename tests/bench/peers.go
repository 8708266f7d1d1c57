package main

import (
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5"
)

// peer is another system that issues short-lived tokens to agents. Its server is in the PATH under its name.
type peer struct {
	name string
	// start configures the server and returns its process and its address. The server listens on loopback.
	start func(ctx context.Context, d *deployment, binary string) (*exec.Cmd, string, error)
	// callers registers n agents, and returns what each of them sends for a token.
	callers func(ctx context.Context, address string, n int) ([]call, error)
}

var peers = []peer{
	{"zeroid", startZeroID, zeroIDCallers},
	{"agentwrit", startAgentWrit, agentWritCallers},
}

// comparePeers sends the same request to Brevet, to Vault and to each peer in the PATH: an agent proves who it is, and gets a token for
// one action that expires within minutes. They are measured in turn on the same machine, with their default settings and little logging.
func comparePeers(ctx context.Context, o options, out io.Writer) error {
	d, err := start(ctx, o.binary, asBuilt())
	if err != nil {
		return err
	}
	err = d.comparePeers(ctx, o, out)
	return errors.Join(err, d.close())
}

func (d *deployment) comparePeers(ctx context.Context, o options, out io.Writer) error {
	if err := d.prepareVault(ctx); err != nil {
		return fmt.Errorf("preparing Vault: %w", err)
	}
	names, callers := []string{"brevet", "vault"}, map[string][]call{}
	var err error
	if callers["brevet"], err = d.targets()["issue"](o.connections); err != nil {
		return err
	}
	if callers["vault"], err = d.targets()["login"](o.connections); err != nil {
		return err
	}
	for _, p := range peers {
		binary, err := exec.LookPath(p.name)
		if err != nil {
			fmt.Fprintf(out, "%s is not in the PATH and is left out\n", p.name)
			continue
		}
		process, address, err := p.start(ctx, d, binary)
		if err != nil {
			return fmt.Errorf("starting %s: %w", p.name, err)
		}
		d.peers = append(d.peers, process)
		if err := answers(ctx, address); err != nil {
			return fmt.Errorf("starting %s: %w", p.name, err)
		}
		if callers[p.name], err = p.callers(ctx, address, o.connections); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
		names = append(names, p.name)
	}
	all := map[string][]load{}
	for round := range o.rounds + 1 { // the first one warms up
		for _, name := range names {
			l := d.closed(ctx, callers[name], o.lasts)
			if err := l.check(); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			if round > 0 {
				all[name] = append(all[name], l)
			}
			fmt.Fprintf(os.Stderr, "\r\033[Kround %d of %d: %s %.0f/s", round, o.rounds, name, l.rate())
		}
	}
	fmt.Fprint(os.Stderr, "\r\033[K")
	printPeers(out, names, all)
	return nil
}

// printPeers writes a table of what a token costs at each of them.
func printPeers(out io.Writer, names []string, all map[string][]load) {
	table := tabwriter.NewWriter(out, 0, 4, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "a token from\t/s\tp50\tp99\tµs of processor time\tbrevet's rate to it, least\tmedian\tmost\t")
	for _, name := range names {
		l := median(all, name)
		f := figuresOf(l)
		of := ratio(all, "brevet", name)
		fmt.Fprintf(table, "%s\t%.0f\t%s\t%s\t%d\t%.2f\t%.2f\t%.2f\t\n", name, f.Rate, shown(f.P50), shown(f.P99), onServers(l), of[0], of[len(of)/2], of[len(of)-1])
	}
	_ = table.Flush()
}

// answers waits until a server accepts connections, for at most a minute.
func answers(ctx context.Context, address string) error {
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		conn, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "tcp", address)
		if err == nil {
			return conn.Close()
		}
	}
	return errors.New("it does not answer after a minute")
}

// launchPeer starts a server whose output goes to a file.
func (d *deployment) launchPeer(ctx context.Context, binary string, env []string, args ...string) (*exec.Cmd, error) {
	log, err := os.Create(d.path(filepath.Base(binary) + ".log"))
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }()
	process := exec.CommandContext(ctx, binary, args...) //nolint:gosec // a server that the user has chosen
	process.Env, process.Stdout, process.Stderr, process.Dir = append(os.Environ(), env...), log, log, d.dir
	process.Cancel = func() error { return process.Process.Signal(syscall.SIGTERM) }
	return process, process.Start()
}

// startZeroID starts ZeroID on a database of the same PostgreSQL server.
func startZeroID(ctx context.Context, d *deployment, binary string) (*exec.Cmd, string, error) {
	const name = "zeroid"
	if err := d.createDatabase(ctx, name); err != nil {
		return nil, "", err
	}
	address, err := freeAddress(ctx)
	if err != nil {
		return nil, "", err
	}
	_, port, _ := net.SplitHostPort(address)
	env := []string{
		"ZEROID_PORT=" + port, "ZEROID_DATABASE_URL=" + strings.Replace(d.servers.Postgres.TCPURL(), "/brevet?", "/"+name+"?", 1),
		"ZEROID_AUTO_MIGRATE=true", "ZEROID_ISSUER=http://" + address, "ZEROID_WIMSE_DOMAIN=" + domain, "ZEROID_TOKEN_TTL_SECONDS=300",
		"ZEROID_LOG_LEVEL=error",
	}
	elliptical, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, "", err
	}
	other, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return nil, "", err
	}
	ec, err := x509.MarshalECPrivateKey(elliptical)
	if err != nil {
		return nil, "", err
	}
	for _, key := range []struct {
		variable, kind string
		der            []byte
		public         any
	}{
		{"ZEROID", "EC PRIVATE KEY", ec, elliptical.Public()},
		{"ZEROID_RSA", "RSA PRIVATE KEY", x509.MarshalPKCS1PrivateKey(other), other.Public()},
	} {
		public, err := pemOf(key.public)
		if err != nil {
			return nil, "", err
		}
		private := string(pem.EncodeToMemory(&pem.Block{Type: key.kind, Bytes: key.der}))
		for half, text := range map[string]string{"_PRIVATE_KEY_PATH": private, "_PUBLIC_KEY_PATH": public} {
			file := d.path(key.variable + half)
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				return nil, "", err
			}
			env = append(env, key.variable+half+"="+file)
		}
	}
	process, err := d.launchPeer(ctx, binary, env)
	return process, address, err
}

// zeroIDCallers exchange the API key of an agent for a token (grant type api_key).
func zeroIDCallers(ctx context.Context, address string, n int) ([]call, error) {
	base, tenant := "http://"+address, http.Header{"X-Account-Id": {"bench"}, "X-Project-Id": {"bench"}}
	return callers(n, func(i int) (call, error) {
		body, err := json.Marshal(map[string]any{
			"name": fmt.Sprintf("agent-%d", i), "external_id": fmt.Sprintf("agent-%d", i), "identity_type": "agent", "created_by": "bench",
			"allowed_scopes": []string{"issues:read"},
		})
		if err != nil {
			return nil, err
		}
		got, err := asking(nil, http.MethodPost, base+"/api/v1/agents/register", tenant.Clone())(ctx, body)
		if err != nil {
			return nil, err
		}
		var agent struct {
			APIKey string `json:"api_key"`
		}
		if err := json.Unmarshal(got.body, &agent); err != nil || agent.APIKey == "" {
			return nil, fmt.Errorf("registering an agent: status %d: %.300s", got.status, got.body)
		}
		return post(nil, base+"/oauth2/token", http.Header{}, map[string]any{
			"grant_type": "api_key", "api_key": agent.APIKey, "scope": "issues:read",
		}, http.StatusOK)
	})
}

// startAgentWrit starts AgentWrit's broker, which keeps its audit trail in SQLite.
func startAgentWrit(ctx context.Context, d *deployment, binary string) (*exec.Cmd, string, error) {
	address, err := freeAddress(ctx)
	if err != nil {
		return nil, "", err
	}
	_, port, _ := net.SplitHostPort(address)
	process, err := d.launchPeer(ctx, binary, []string{
		"AA_PORT=" + port, "AA_BIND_ADDRESS=127.0.0.1", "AA_LOG_LEVEL=quiet", "AA_TRUST_DOMAIN=" + domain, "AA_ADMIN_SECRET=" + agentWritSecret,
		"AA_DB_PATH=" + d.path("agentwrit.db"), "AA_SIGNING_KEY_PATH=" + d.path("agentwrit.key"),
	})
	return process, address, err
}

// agentWritSecret is the administrator's secret of a server that lives as long as the measurement.
var agentWritSecret = rand.Text()

// agentWritCallers register an agent for each token, since AgentWrit's tokens belong to an agent that lives for one task: they get a
// challenge, and sign it with the agent's key.
func agentWritCallers(ctx context.Context, address string, n int) ([]call, error) {
	base := "http://" + address
	admin, err := exchanged(ctx, http.MethodPost, base+"/v1/admin/auth", http.Header{}, map[string]any{"secret": agentWritSecret}, "access_token")
	if err != nil {
		return nil, err
	}
	launch, err := exchanged(ctx, http.MethodPost, base+"/v1/admin/launch-tokens", http.Header{"Authorization": {"Bearer " + admin}}, map[string]any{
		"agent_name": "bench", "allowed_scope": []string{"read:issues:*"}, "max_ttl": 300, "single_use": false, "ttl": 3600,
	}, "launch_token")
	if err != nil {
		return nil, err
	}
	return callers(n, func(i int) (call, error) {
		public, private, err := ed25519.GenerateKey(rand.Reader)
		if err != nil {
			return nil, err
		}
		challenge := asking(nil, http.MethodGet, base+"/v1/challenge", http.Header{})
		register := asking(nil, http.MethodPost, base+"/v1/register", http.Header{})
		return func(ctx context.Context) error {
			got, err := challenge(ctx, nil)
			if err != nil {
				return err
			}
			var asked struct{ Nonce string }
			if err := json.Unmarshal(got.body, &asked); err != nil {
				return fmt.Errorf("challenge: status %d: %.300s", got.status, got.body)
			}
			nonce, err := hex.DecodeString(asked.Nonce)
			if err != nil {
				return err
			}
			body, err := json.Marshal(map[string]any{
				"launch_token": launch, "nonce": asked.Nonce, "public_key": base64.StdEncoding.EncodeToString(public),
				"signature": base64.StdEncoding.EncodeToString(ed25519.Sign(private, nonce)),
				"orch_id":   "bench", "task_id": fmt.Sprintf("task-%d", i), "requested_scope": []string{"read:issues:*"},
			})
			if err != nil {
				return err
			}
			got, err = register(ctx, body)
			if err == nil && got.status != http.StatusOK {
				err = fmt.Errorf("register: status %d: %.300s", got.status, got.body)
			}
			return err
		}, nil
	})
}

// exchanged sends a request, and returns a member of the response.
func exchanged(ctx context.Context, method, url string, header http.Header, body map[string]any, member string) (string, error) {
	text, err := json.Marshal(body)
	if err != nil {
		return "", err
	}
	got, err := asking(nil, method, url, header)(ctx, text)
	if err != nil {
		return "", err
	}
	var members map[string]any
	err = json.Unmarshal(got.body, &members)
	value, _ := members[member].(string)
	if value == "" {
		return "", cmp.Or(err, fmt.Errorf("%s: status %d: %.300s", url, got.status, got.body))
	}
	return value, nil
}

// createDatabase creates an empty database beside Brevet's.
func (d *deployment) createDatabase(ctx context.Context, name string) error {
	conn, err := pgx.Connect(ctx, d.servers.Postgres.TCPURL())
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }()
	_, err = conn.Exec(ctx, "CREATE DATABASE "+pgx.Identifier{name}.Sanitize())
	return err
}

// Package rotation_test keeps long-lived clients working while SVIDs that live for ten seconds and the authorities that sign them
// rotate, as they do under SPIRE every day. `make rotation` runs it for three minutes.
//
// It must never count a call as successful if it still failed after one retry.
package rotation_test

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/client"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/spiffetls/tlsconfig"
	"github.com/spiffe/go-spiffe/v2/workloadapi"
)

var (
	load         = flag.Duration("load", 15*time.Second, "how long the clients work")
	svidTTL      = flag.Duration("svid-ttl", 4*time.Second, "how long SVIDs live")
	authorityTTL = flag.Duration("authority-ttl", 6*time.Second, "how long an authority signs before the next one takes over")
)

// All clients work at the same time, even on few processors.
func TestMain(m *testing.M) {
	if err := flag.Set("test.parallel", "16"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// repository is the resource of this suite's tokens.
const repository = "acme/api"

// Every kind of long-running client keeps working through rotations of its SVID, of the broker's SVID, and of the authorities.
func TestClientsOutliveRotations(t *testing.T) {
	host := newHost(t)
	s := startStack(t, host)
	for name, work := range map[string]func(*testing.T, *stack, *webHost){
		"SDK with an X.509-SVID": sdkWithX509,
		"SDK with JWT-SVIDs":     sdkWithJWT,
		"exec":                   execRenews,
		"exec --egress":          execEgress,
		"egress HTTP":            egressHTTP,
		"egress PostgreSQL":      egressPostgres,
		"MCP":                    mcpSession,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			work(t, s, host)
		})
	}
}

// repeat calls do until the load ends. One retry may hide a failure. A second failure in a row fails the test.
func repeat(t *testing.T, do func(context.Context) error) {
	t.Helper()
	calls, retried := 0, 0
	for end := time.Now().Add(*load); time.Now().Before(end); {
		err := do(t.Context())
		if err != nil {
			retried++
			if again := do(t.Context()); again != nil {
				t.Fatalf("call %d failed twice: %v; then %v", calls+1, err, again)
			}
		}
		calls++
		select {
		case <-t.Context().Done():
			return
		case <-time.After(200 * time.Millisecond):
		}
	}
	if calls < 10 {
		t.Errorf("made %d calls: the load is not a load", calls)
	}
	t.Logf("%d calls, %d of them retried", calls, retried)
}

func sdkWithX509(t *testing.T, s *stack, _ *webHost) {
	source, err := workloadapi.NewX509Source(t.Context(), workloadapi.WithClientOptions(workloadapi.WithAddr(s.env["SPIFFE_ENDPOINT_SOCKET"])))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = source.Close() })
	c, err := client.New(client.Config{BaseURL: s.env["BREVET_SERVER"]}, client.WithX509(source, source, s.isBroker()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	issue(t, c, "t-x509")
}

func sdkWithJWT(t *testing.T, s *stack, _ *webHost) {
	address := workloadapi.WithClientOptions(workloadapi.WithAddr(s.env["SPIFFE_ENDPOINT_SOCKET"]))
	bundles, err := workloadapi.NewX509Source(t.Context(), address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = bundles.Close() })
	tokens, err := workloadapi.NewJWTSource(t.Context(), address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tokens.Close() })
	c, err := client.New(client.Config{BaseURL: s.env["BREVET_SERVER"]}, client.WithServer(bundles, s.isBroker()), client.WithJWT(tokens, s.env["BREVET_SERVER"]))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	issue(t, c, "t-jwt")
}

func issue(t *testing.T, c *client.Client, task string) {
	t.Helper()
	repeat(t, func(ctx context.Context) error {
		got, err := c.Request(ctx, client.Ask{Scope: "rotation.host.read", Params: map[string]any{"repo": repository}, Task: task})
		if err == nil && got.Token == nil {
			err = fmt.Errorf("got %+v, want a token", got)
		}
		return err
	})
}

// loop returns a shell program that runs a command until the load ends. It fails if the command fails twice in a row.
func loop(command string) string {
	return fmt.Sprintf(`end=$(($(date +%%s) + %d)); calls=0; retried=0
while [ "$(date +%%s)" -lt "$end" ]; do
  if ! %[2]s >/dev/null 2>"$ERRORS"; then
    retried=$((retried + 1))
    if ! %[2]s >/dev/null 2>>"$ERRORS"; then echo "call $((calls + 1)) failed twice:"; cat "$ERRORS"; exit 1; fi
  fi
  calls=$((calls + 1)); sleep 0.3
done
echo "$calls calls, $retried of them retried"; test "$calls" -gt 5`, int(load.Seconds()), command)
}

// curl returns a command that fails on any status but success.
func (h *webHost) curl(flags string) string {
	return "curl -sS --fail-with-body --noproxy '' " + flags + " https://" + h.name + "/repos/" + repository
}

func execRenews(t *testing.T, s *stack, h *webHost) {
	command := `sh -c '` + strings.ReplaceAll(h.curl(`--cacert "`+h.ca+`" -H "Authorization: Bearer $(cat $BREVET_DIR/token)"`), `'`, `'"'"'`) + `'`
	s.run(t, "exec", "--task", "t-exec", "--scope", "rotation.host.read", "--param", "repo="+repository, "--ttl", "8s", "--file", "token",
		"--", "sh", "-c", loop(command))
	s.nothingLeft(t, "t-exec")
}

func execEgress(t *testing.T, s *stack, h *webHost) {
	s.run(t, append(append([]string{"exec", "--egress", "--task", "t-exec-egress"}, h.reach()...), "--", "sh", "-c", loop(h.curl("")))...)
	s.nothingLeft(t, "t-exec-egress")
}

func egressHTTP(t *testing.T, s *stack, h *webHost) {
	s.throughGateway(t, h, "t-egress-http", h.curl(""))
}

func egressPostgres(t *testing.T, s *stack, h *webHost) {
	s.throughGateway(t, h, "t-egress-pg", "psql -XAtc 'SELECT count(*) FROM orders' -d target -U anybody")
}

// throughGateway runs a loop whose traffic goes through a separate `brevet egress`, and then stops that gateway.
func (s *stack) throughGateway(t *testing.T, h *webHost, task, command string) {
	dir := t.TempDir()
	gateway := s.start(t, append([]string{"egress", "--task", task, "--listen", "127.0.0.1:0", "--dir", dir}, h.reach()...)...)
	s.await(t, "the gateway", func() bool {
		return exec.CommandContext(t.Context(), s.binary, "egress", "env", "--dir", dir).Run() == nil
	})
	program := exec.CommandContext(t.Context(), "sh", "-c", `eval "$(`+s.binary+` egress env --dir `+dir+`)"; `+loop(command))
	program.Env = append(os.Environ(), "ERRORS="+filepath.Join(t.TempDir(), "errors"))
	out, err := program.CombinedOutput()
	if err != nil {
		t.Errorf("%v: %s\n%s", err, out, gateway.said())
	}
	t.Logf("%s", out)
	gateway.stop(t)
	s.nothingLeft(t, task)
}

func mcpSession(t *testing.T, s *stack, _ *webHost) {
	cmd := exec.CommandContext(t.Context(), s.binary, "mcp", "--task", "t-mcp", "--scope", "rotation.host.read")
	cmd.Env = s.environ()
	session, err := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil).Connect(t.Context(), &mcp.CommandTransport{Command: cmd}, nil)
	if err != nil {
		t.Fatal(err)
	}
	repeat(t, func(ctx context.Context) error {
		result, err := session.CallTool(ctx, &mcp.CallToolParams{Name: "request", Arguments: map[string]any{
			"scope": "rotation.host.read", "params": map[string]any{"repo": repository},
		}})
		if err != nil {
			return err
		}
		var answer struct{ ID, Status string }
		encoded, _ := json.Marshal(result.StructuredContent)
		if err := json.Unmarshal(encoded, &answer); err != nil || answer.Status != "issued" {
			return fmt.Errorf("got %s", encoded)
		}
		_, err = session.CallTool(ctx, &mcp.CallToolParams{Name: "release", Arguments: map[string]any{"id": answer.ID}})
		return err
	})
	if err := session.Close(); err != nil {
		t.Errorf("ending the session: %v", err)
	}
	s.nothingLeft(t, "t-mcp")
}

// webHost is a foreign server that accepts any token. Its certificate comes from its own authority.
type webHost struct {
	name, ca string
	calls    atomic.Int64
}

func newHost(t *testing.T) *webHost {
	t.Helper()
	cert, pem := selfSigned(t)
	h := &webHost{ca: filepath.Join(t.TempDir(), "host.pem")}
	if err := os.WriteFile(h.ca, pem, 0o600); err != nil {
		t.Fatal(err)
	}
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{ReadHeaderTimeout: time.Minute, TLSConfig: cert, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasPrefix(r.Header.Get("Authorization"), "Bearer ey") {
			http.Error(w, "no token", http.StatusUnauthorized)
			return
		}
		h.calls.Add(1)
		_, _ = io.WriteString(w, "served")
	})}
	go func() { _ = srv.ServeTLS(listener, "", "") }()
	t.Cleanup(func() { _ = srv.Close() })
	h.name = fmt.Sprintf("localhost:%d", listener.Addr().(*net.TCPAddr).Port)
	return h
}

// reach returns the flags that let a gateway call the host.
func (h *webHost) reach() []string {
	return []string{"--host-ca", h.ca, "--allow-private", "127.0.0.1/32"}
}

func (s *stack) isBroker() tlsconfig.Authorizer {
	return tlsconfig.AuthorizeID(spiffeid.RequireFromString(s.env["BREVET_SERVER_ID"]))
}

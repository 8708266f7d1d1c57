package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/internal/devstack"
	"github.com/brevet-dev/brevet/internal/devstack/local"
	"github.com/brevet-dev/brevet/internal/egress"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/spiffetls/tlsconfig"
)

// agentWith is a Workload API whose responses change.
type agentWith struct {
	issuer  *devstack.Issuer
	given   atomic.Pointer[[]devstack.WorkloadIdentity]
	address string
}

func newAgent(t *testing.T, given ...devstack.WorkloadIdentity) *agentWith {
	t.Helper()
	a := &agentWith{issuer: newIssuer(t, local.Domain)}
	a.given.Store(&given)
	socket := filepath.Join(shortDir(t), "agent.sock")
	endpoint, err := a.issuer.ServeIdentities(socket, func() []devstack.WorkloadIdentity { return *a.given.Load() })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = endpoint.Close() })
	a.address = endpoint.Addr()
	return a
}

func (a *agentWith) gives(given ...devstack.WorkloadIdentity) {
	a.given.Store(&given)
	a.issuer.Announce()
}

func identity(path, hint string) devstack.WorkloadIdentity {
	return devstack.WorkloadIdentity{ID: spiffeid.RequireFromString("spiffe://" + local.Domain + path), Hint: hint}
}

func servedID(t *testing.T, c *servedCertificate) string {
	t.Helper()
	pair, err := c.get(nil)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(pair.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	return leaf.URIs[0].String()
}

// TestBrokerKeepsItsIdentity checks that the broker ignores additional SVIDs, even if one comes first, and that it is not
// ready without its own.
func TestBrokerKeepsItsIdentity(t *testing.T) {
	t.Parallel()
	own, other := identity("/brevet", ""), identity("/other", "")
	agent := newAgent(t, own)
	s := &service{}
	t.Cleanup(s.close)
	c, err := s.openCertificate(t.Context(), TLSConfig{WorkloadAPI: agent.address})
	if err != nil {
		t.Fatal(err)
	}
	serial := func() string { return c.leaf().SerialNumber.String() }
	for _, given := range [][]devstack.WorkloadIdentity{{other, own}, {own, other}} {
		before := serial()
		agent.gives(given...)
		within(t, patience, "a renewed certificate", func() bool { return serial() != before })
		if got := servedID(t, c); got != own.ID.String() || c.ready(t.Context()) != nil {
			t.Errorf("serving as %s, %v, want %s", got, c.ready(t.Context()), own.ID)
		}
	}
	agent.gives(other)
	within(t, patience, "not ready without the identity", func() bool { return c.ready(t.Context()) != nil })
	if err := c.ready(t.Context()); !strings.Contains(err.Error(), "does not give "+own.ID.String()) || servedID(t, c) != own.ID.String() {
		t.Errorf("got %v, serving as %s", err, servedID(t, c))
	}
	agent.gives(own)
	within(t, patience, "ready with the identity back", func() bool { return c.ready(t.Context()) == nil })
}

func TestBrokerChoosesAmongSVIDs(t *testing.T) {
	t.Parallel()
	agent := newAgent(t, identity("/other", "internal"), identity("/brevet", "external"))
	open := func(choice string) (*servedCertificate, error) {
		s := &service{}
		t.Cleanup(s.close)
		return s.openCertificate(t.Context(), TLSConfig{WorkloadAPI: agent.address, SVID: choice})
	}
	if _, err := open(""); err == nil || !strings.Contains(err.Error(), "spiffe://"+local.Domain+"/other (hint internal), spiffe://"+local.Domain+"/brevet (hint external)") ||
		!strings.Contains(err.Error(), "tls.svid") {
		t.Errorf("got %v, want both, and the key that chooses", err)
	}
	for _, choice := range []string{"external", "spiffe://" + local.Domain + "/brevet"} {
		if c, err := open(choice); err != nil || servedID(t, c) != "spiffe://"+local.Domain+"/brevet" {
			t.Errorf("%s: got %v", choice, err)
		}
	}
	if _, err := open("nobody"); err == nil || !strings.Contains(err.Error(), "does not give nobody") {
		t.Errorf("got %v", err)
	}
}

// TestCertificateProblemsAreVisible checks that problems of a certificate show in readiness, and in the log before it
// expires.
func TestCertificateProblemsAreVisible(t *testing.T) {
	t.Parallel()
	agent := newAgent(t, identity("/brevet", ""))
	s := &service{}
	t.Cleanup(s.close)
	c, err := s.openCertificate(t.Context(), TLSConfig{WorkloadAPI: agent.address})
	if err != nil {
		t.Fatal(err)
	}
	var ahead atomic.Int64
	c.now = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
	for _, step := range []struct {
		ahead time.Duration
		want  string
		ready bool
	}{{0, "", true}, {50 * time.Minute, certificateExpiring, true}, {61 * time.Minute, "the certificate expired at", false}} {
		ahead.Store(int64(step.ahead))
		if got, err := c.problem(c.leaf()), c.ready(context.Background()); !strings.HasPrefix(got, step.want) || (got == "") != (step.want == "") || (err == nil) != step.ready {
			t.Errorf("after %s: got %q, %v, want %q", step.ahead, got, err, step.want)
		}
	}
	said := newStream()
	log, err := newLogger(LogConfig{Level: "info", Format: "text"}, said)
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = c.watch(t.Context(), log, 5*time.Millisecond) }()
	within(t, patience, "an error in the log", func() bool { return strings.Contains(said.String(), "certificate is not usable") })
	ahead.Store(0)
	agent.gives(identity("/brevet", ""))
	within(t, patience, "the renewal in the log", func() bool { return strings.Contains(said.String(), "certificate renewed") })
}

// TestCallerIsToldWhatTheAgentSays checks that a command reports the agent's answer at once.
func TestCallerIsToldWhatTheAgentSays(t *testing.T) {
	t.Parallel()
	request := []string{"request", "github.issues.read", "repo=acme/api", "--task", "t", "--server", "https://localhost:1"}
	none := newAgent(t)
	began := time.Now()
	brevet(t, nil, append(request, "--workload-api", none.address)...).want(t, 1, "no identity issued", "no registration entry selects this process")
	if took := time.Since(began); took > workloadTimeout {
		t.Errorf("it took %s to say so", took)
	}
	two := newAgent(t, identity("/a", "first"), identity("/b", "second"))
	brevet(t, nil, append(request, "--workload-api", two.address)...).want(t, 1, "spiffe://"+local.Domain+"/a (hint first), spiffe://"+local.Domain+"/b (hint second)", "--svid or BREVET_SVID")
	brevet(t, nil, append(request, "--workload-api", two.address, "--svid", "third")...).want(t, 1, "does not give third")
	// With a choice, the command gets as far as calling the broker, which does not exist.
	brevet(t, nil, append(request, "--workload-api", two.address, "--svid", "second")...).want(t, 1, "connection refused")
}

func TestMissingFlagsNameTheirVariables(t *testing.T) {
	t.Parallel()
	brevet(t, nil, "request", "github.issues.read").want(t, 2, "missing flags", "--workload-api can also be set by the variable SPIFFE_ENDPOINT_SOCKET",
		"--server can also be set by the variable BREVET_SERVER")
}

// TestAudienceOfAServerWithASlash checks that the audience has no slash at its end, although people may write one after the
// server's URL.
func TestAudienceOfAServerWithASlash(t *testing.T) {
	t.Parallel()
	for _, server := range []string{"https://brevet.test", "https://brevet.test/"} {
		if got := (CallerFlags{Server: server}).audience(); got != "https://brevet.test" {
			t.Errorf("%s: got the audience %q", server, got)
		}
	}
	if got := (CallerFlags{Server: "https://brevet.test/", Audience: "https://issuer.test/x/"}).audience(); got != "https://issuer.test/x/" {
		t.Errorf("got %q, want the audience as it was given", got)
	}
}

func TestCAFileIsUsedForABrokerOfTheWeb(t *testing.T) {
	t.Parallel()
	empty := filepath.Join(t.TempDir(), "empty.pem")
	if err := os.WriteFile(empty, []byte("nothing"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := (CallerFlags{CAFile: empty}).roots(); err == nil || !strings.Contains(err.Error(), "has no PEM certificate") {
		t.Errorf("got %v", err)
	}
	host := newWebHost(t)
	if roots, err := (CallerFlags{CAFile: host.ca}).roots(); err != nil || roots == nil {
		t.Errorf("got %v, %v", roots, err)
	}
	agent := newAgent(t, identity("/a", ""))
	request := []string{"request", "github.issues.read", "repo=acme/api", "--task", "t", "--workload-api", agent.address, "--server", "https://" + host.name}
	brevet(t, nil, request...).want(t, 1, "certificate signed by unknown authority")
	brevet(t, nil, append(request, "--jwt", "--ca-file", empty)...).want(t, 1, "has no PEM certificate")
	// With the roots the connection succeeds, but the server is not a broker.
	brevet(t, nil, append(request, "--ca-file", host.ca)...).want(t, 1, "response is not a Brevet response")
}

// TestGatewayServesAsItself checks that a gateway that also gets the identities of its sandboxes serves with its own, even
// if another one comes first.
func TestGatewayServesAsItself(t *testing.T) {
	t.Parallel()
	own, sandbox := identity("/gateway", ""), identity("/sandbox", "")
	agent := newAgent(t, sandbox, own)
	command := func(svid string) *EgressServeCmd {
		flags := CallerFlags{Server: "https://localhost:1", ServerID: "spiffe://" + local.Domain + "/brevet", WorkloadAPI: agent.address, SVID: svid}
		return &EgressServeCmd{CallerFlags: flags, MTLS: fmt.Sprintf("127.0.0.1:%d", freePort(t))}
	}
	gateway, err := egress.New(egress.Config{CallsPerSecond: 1, Log: slog.New(slog.DiscardHandler), Now: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { gateway.Close(context.WithoutCancel(t.Context())) })
	if err := command("").serveWorkloads(t.Context(), gateway, egress.SandboxConfig{Task: "t"}); err == nil || !strings.Contains(err.Error(), "several SVIDs") {
		t.Errorf("got %v, want to be asked which one to serve as", err)
	}
	c := command(own.ID.String())
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.serveWorkloads(ctx, gateway, egress.SandboxConfig{Task: "t"}) }()
	svid, err := agent.issuer.X509SVID(sandbox.ID)
	if err != nil {
		t.Fatal(err)
	}
	as := ""
	within(t, patience, "the gateway answers", func() bool {
		conn, err := tls.Dial("tcp", c.MTLS, tlsconfig.MTLSClientConfig(svid, agent.issuer.Bundle(), tlsconfig.AuthorizeAny()))
		if err != nil {
			return false
		}
		as = conn.ConnectionState().PeerCertificates[0].URIs[0].String()
		return conn.Close() == nil
	})
	if as != own.ID.String() {
		t.Errorf("it serves as %s, want %s", as, own.ID)
	}
	stop()
	if err := <-ended; err != nil {
		t.Errorf("stopping: %v", err)
	}
}

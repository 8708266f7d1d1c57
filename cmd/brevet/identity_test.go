package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/internal/devstack/local"
	"github.com/brevet-dev/brevet/internal/egress"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/spiffe/go-spiffe/v2/spiffetls/tlsconfig"
)

// TestWorkloadAPIErrorIsReported checks that a command reports the agent's answer at once.
func TestWorkloadAPIErrorIsReported(t *testing.T) {
	t.Parallel()
	request := []string{"request", "github.issues.read", "repo=acme/api", "--task", "t", "--server", "https://localhost:1"}
	none := testkit.NewAgent(t)
	began := time.Now()
	brevet(t, nil, append(request, "--workload-api", none.Address)...).want(t, 1, "no identity issued", "no registration entry selects this process")
	if took := time.Since(began); took > workloadTimeout {
		t.Errorf("it took %s to say so", took)
	}
	two := testkit.NewAgent(t, testkit.Identity("/a", "first"), testkit.Identity("/b", "second"))
	brevet(t, nil, append(request, "--workload-api", two.Address)...).want(t, 1, "spiffe://"+local.Domain+"/a (hint first), spiffe://"+local.Domain+"/b (hint second)", "--svid or BREVET_SVID")
	brevet(t, nil, append(request, "--workload-api", two.Address, "--svid", "third")...).want(t, 1, "does not give third")
	// With a choice, the command gets as far as calling the broker, which does not exist.
	brevet(t, nil, append(request, "--workload-api", two.Address, "--svid", "second")...).want(t, 1, "connection refused")
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

func TestCAFileVerifiesAWebPKIBroker(t *testing.T) {
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
	agent := testkit.NewAgent(t, testkit.Identity("/a", ""))
	request := []string{"request", "github.issues.read", "repo=acme/api", "--task", "t", "--workload-api", agent.Address, "--server", "https://" + host.name}
	brevet(t, nil, request...).want(t, 1, "certificate signed by unknown authority")
	brevet(t, nil, append(request, "--jwt", "--ca-file", empty)...).want(t, 1, "has no PEM certificate")
	// With the roots the connection succeeds, but the server is not a broker.
	brevet(t, nil, append(request, "--ca-file", host.ca)...).want(t, 1, "response is not a Brevet response")
}

// TestGatewayPresentsItsOwnSVID checks that a gateway that also gets the identities of its sandboxes serves with its own, even
// if another one comes first.
func TestGatewayPresentsItsOwnSVID(t *testing.T) {
	t.Parallel()
	own, sandbox := testkit.Identity("/gateway", ""), testkit.Identity("/sandbox", "")
	agent := testkit.NewAgent(t, sandbox, own)
	command := func(svid string) *EgressServeCmd {
		flags := CallerFlags{Server: "https://localhost:1", ServerID: "spiffe://" + local.Domain + "/brevet", WorkloadAPI: agent.Address, SVID: svid}
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
	svid, err := agent.Issuer.X509SVID(sandbox.ID)
	if err != nil {
		t.Fatal(err)
	}
	as := ""
	within(t, patience, "the gateway answers", func() bool {
		conn, err := tls.Dial("tcp", c.MTLS, tlsconfig.MTLSClientConfig(svid, agent.Issuer.Bundle(), tlsconfig.AuthorizeAny()))
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

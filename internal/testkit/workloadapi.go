package testkit

import (
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/internal/devstack"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

// NewIssuer returns a SPIFFE issuer for a trust domain.
func NewIssuer(t testing.TB, name string) *devstack.Issuer {
	t.Helper()
	issuer, err := devstack.NewIssuer(devstack.IssuerConfig{
		TrustDomain: spiffeid.RequireTrustDomainFromString(name), RefreshHint: time.Second,
	})
	if err != nil {
		t.Fatal(err)
	}
	return issuer
}

// SocketFolder returns a folder for a socket. The path of t.TempDir may be too long for one.
func SocketFolder(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "agent-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// Agent is a Workload API whose responses change.
type Agent struct {
	Issuer  *devstack.Issuer
	Address string
	given   atomic.Pointer[[]devstack.WorkloadIdentity]
}

// NewAgent starts a Workload API that gives identities of acme.example.
func NewAgent(t testing.TB, given ...devstack.WorkloadIdentity) *Agent {
	t.Helper()
	a := &Agent{Issuer: NewIssuer(t, "acme.example")}
	a.given.Store(&given)
	endpoint, err := a.Issuer.ServeIdentities(filepath.Join(SocketFolder(t), "agent.sock"), func() []devstack.WorkloadIdentity { return *a.given.Load() })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = endpoint.Close() })
	a.Address = endpoint.Addr()
	return a
}

// Gives changes the identities that the Workload API gives.
func (a *Agent) Gives(given ...devstack.WorkloadIdentity) {
	a.given.Store(&given)
	a.Issuer.Announce()
}

// Identity is an identity of acme.example for an Agent to give.
func Identity(path, hint string) devstack.WorkloadIdentity {
	return devstack.WorkloadIdentity{ID: spiffeid.RequireFromString("spiffe://acme.example" + path), Hint: hint}
}

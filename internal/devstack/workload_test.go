package devstack_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/internal/devstack"
	"github.com/spiffe/go-spiffe/v2/bundle/spiffebundle"
	"github.com/spiffe/go-spiffe/v2/proto/spiffe/workload"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/svid/jwtsvid"
	"github.com/spiffe/go-spiffe/v2/svid/x509svid"
	"github.com/spiffe/go-spiffe/v2/workloadapi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

func serve(t *testing.T, issuer *devstack.Issuer) *devstack.Endpoint {
	t.Helper()
	endpoint, err := issuer.ServeWorkload(filepath.Join(t.TempDir(), "agent.sock"), agent)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := endpoint.Close(); err != nil {
			t.Error(err)
		}
	})
	return endpoint
}

func addr(endpoint *devstack.Endpoint) workloadapi.SourceOption {
	return workloadapi.WithClientOptions(workloadapi.WithAddr(endpoint.Addr()))
}

func x509Source(t *testing.T, endpoint *devstack.Endpoint) *workloadapi.X509Source {
	t.Helper()
	source, err := workloadapi.NewX509Source(t.Context(), addr(endpoint))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = source.Close() })
	return source
}

func TestWorkloadAPIX509(t *testing.T) {
	t.Parallel()
	issuer := issuerOf(t, acme)
	source := x509Source(t, serve(t, issuer))
	first, err := source.GetX509SVID()
	if err != nil || first.ID != agent {
		t.Fatalf("SVID: got %v, %v, want %v", first, err, agent)
	}
	if err := errors.Join(issuer.Rotate(), issuer.Prune()); err != nil {
		t.Fatal(err)
	}
	within(t, 5*time.Second, "the live stream brings an SVID that the new bundle verifies", func() bool {
		svid, err := source.GetX509SVID()
		if err != nil {
			return false
		}
		_, _, err = x509svid.Verify(svid.Certificates, issuer.Bundle())
		return err == nil
	})
	within(t, 5*time.Second, "the old authority leaves the live stream", func() bool {
		_, _, err := x509svid.Verify(first.Certificates, source)
		return err != nil
	})
}

func TestWorkloadAPIRenewsBeforeExpiry(t *testing.T) {
	t.Parallel()
	issuer := newIssuer(t, devstack.IssuerConfig{TrustDomain: acme, X509TTL: 12 * time.Second})
	source := x509Source(t, serve(t, issuer))
	first, err := source.GetX509SVID()
	if err != nil {
		t.Fatal(err)
	}
	expiry := first.Certificates[0].NotAfter
	within(t, time.Until(expiry), "another SVID comes before the first expires", func() bool {
		svid, err := source.GetX509SVID()
		return err == nil && svid.Certificates[0].NotAfter.After(expiry)
	})
}

func TestWorkloadAPIJWT(t *testing.T) {
	t.Parallel()
	issuer := issuerOf(t, acme)
	endpoint := serve(t, issuer)
	source, err := workloadapi.NewJWTSource(t.Context(), addr(endpoint))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = source.Close() }()
	svid, err := source.FetchJWTSVID(t.Context(), jwtsvid.Params{Audience: "a", Subject: agent})
	if err != nil || svid.ID != agent {
		t.Fatalf("SVID: got %v, %v, want %v", svid, err, agent)
	}
	if _, err := jwtsvid.ParseAndValidate(svid.Marshal(), source, []string{"a"}); err != nil {
		t.Errorf("validating with the source's bundle: %v", err)
	}
	neighbour := spiffeid.RequireFromPath(acme, "/agents/two")
	_, err = source.FetchJWTSVID(t.Context(), jwtsvid.Params{Audience: "a", Subject: neighbour})
	if status.Code(errors.Unwrap(err)) != codes.PermissionDenied && status.Code(err) != codes.PermissionDenied {
		t.Errorf("a neighbour's identity: got %v, want PermissionDenied", err)
	}

	token := svid.Marshal()
	checked, err := workloadapi.ValidateJWTSVID(t.Context(), token, "a", workloadapi.WithAddr(endpoint.Addr()))
	if err != nil || checked.ID != agent {
		t.Errorf("ValidateJWTSVID: got %v, %v, want %v", checked, err, agent)
	}
	if _, err := workloadapi.ValidateJWTSVID(t.Context(), token, "b", workloadapi.WithAddr(endpoint.Addr())); err == nil {
		t.Error("ValidateJWTSVID accepted another audience")
	}
	if err := errors.Join(issuer.Rotate(), issuer.Prune()); err != nil {
		t.Fatal(err)
	}
	within(t, 5*time.Second, "the live stream drops the old key", func() bool {
		_, err := jwtsvid.ParseAndValidate(token, source, []string{"a"})
		return err != nil
	})
	if _, err := workloadapi.ValidateJWTSVID(t.Context(), token, "a", workloadapi.WithAddr(endpoint.Addr())); err == nil {
		t.Error("ValidateJWTSVID accepted a pruned key")
	}
}

func TestExpiredJWTSVIDGetsNoLeeway(t *testing.T) {
	t.Parallel()
	issuer := newIssuer(t, devstack.IssuerConfig{TrustDomain: acme, JWTTTL: -5 * time.Second})
	token := jwtSVID(t, issuer, "a")
	if _, err := jwtsvid.ParseAndValidate(token, issuer.Bundle(), []string{"a"}); err != nil {
		t.Fatalf("go-spiffe no longer has a grace: %v", err)
	}
	if _, err := workloadapi.ValidateJWTSVID(t.Context(), token, "a", workloadapi.WithAddr(serve(t, issuer).Addr())); err == nil {
		t.Error("a token past its expiry was accepted")
	}
}

func TestWorkloadAPIFederation(t *testing.T) {
	t.Parallel()
	issuer, foreign := issuerOf(t, acme), issuerOf(t, other)
	endpoint := serve(t, issuer)
	source, err := workloadapi.NewBundleSource(t.Context(), addr(endpoint))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = source.Close() }()
	holds := func(td spiffeid.TrustDomain, want *spiffebundle.Bundle) func() bool {
		return func() bool {
			got, err := source.GetBundleForTrustDomain(td)
			if want == nil {
				return err != nil
			}
			return err == nil && got.X509Bundle().Equal(want.X509Bundle()) && got.JWTBundle().Equal(want.JWTBundle())
		}
	}
	within(t, 5*time.Second, "our own bundle is served", holds(acme, issuer.Bundle()))
	if !holds(other, nil)() {
		t.Error("a bundle is served that was never federated")
	}
	issuer.Federate(foreign.Bundle())
	within(t, 5*time.Second, "the foreign bundle is served", holds(other, foreign.Bundle()))
	within(t, 5*time.Second, "both bundles are fetched", func() bool {
		set, err := workloadapi.FetchX509Bundles(t.Context(), workloadapi.WithAddr(endpoint.Addr()))
		return err == nil && set.Has(acme) && set.Has(other)
	})
	svid, err := workloadapi.FetchX509SVID(t.Context(), workloadapi.WithAddr(endpoint.Addr()))
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := x509svid.Verify(svid.Certificates, foreign.Bundle()); err == nil {
		t.Error("the foreign bundle verifies our SVID")
	}
	issuer.Federate(issuerOf(t, acme).Bundle()) // another issuer that claims our own domain
	issuer.Unfederate(other)
	within(t, 5*time.Second, "the foreign bundle is withdrawn", holds(other, nil))
	if !holds(acme, issuer.Bundle())() {
		t.Error("a stranger's bundle was merged with ours")
	}
}

func TestWorkloadAPIDemandsItsHeader(t *testing.T) {
	t.Parallel()
	conn, err := grpc.NewClient(serve(t, issuerOf(t, acme)).Addr(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	api := workload.NewSpiffeWorkloadAPIClient(conn)
	calls := map[string]func(context.Context) error{
		"FetchX509SVID": func(ctx context.Context) error {
			return first(api.FetchX509SVID(ctx, &workload.X509SVIDRequest{}))
		},
		"FetchX509Bundles": func(ctx context.Context) error {
			return first(api.FetchX509Bundles(ctx, &workload.X509BundlesRequest{}))
		},
		"FetchJWTBundles": func(ctx context.Context) error {
			return first(api.FetchJWTBundles(ctx, &workload.JWTBundlesRequest{}))
		},
		"FetchJWTSVID": func(ctx context.Context) error {
			_, err := api.FetchJWTSVID(ctx, &workload.JWTSVIDRequest{Audience: []string{"a"}})
			return err
		},
		"ValidateJWTSVID": func(ctx context.Context) error {
			_, err := api.ValidateJWTSVID(ctx, &workload.ValidateJWTSVIDRequest{Audience: "a", Svid: "x.y.z"})
			return err
		},
	}
	for name, call := range calls {
		for _, value := range []string{"", "false", "TRUE"} {
			ctx := t.Context()
			if value != "" {
				ctx = metadata.AppendToOutgoingContext(ctx, "workload.spiffe.io", value)
			}
			err := call(ctx)
			if status.Code(err) != codes.InvalidArgument || status.Convert(err).Message() != "security header missing from request" {
				t.Errorf("%s with header %q: got %v, want InvalidArgument", name, value, err)
			}
		}
	}
	good := metadata.AppendToOutgoingContext(t.Context(), "workload.spiffe.io", "true")
	if err := calls["FetchX509SVID"](good); err != nil {
		t.Errorf("with the header: %v", err)
	}
	if _, err := api.FetchJWTSVID(good, &workload.JWTSVIDRequest{}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("no audience: got %v, want InvalidArgument", err)
	}
}

func first[M any](stream grpc.ServerStreamingClient[M], err error) error {
	if err != nil {
		return err
	}
	_, err = stream.Recv()
	return err
}

func TestWorkloadSocket(t *testing.T) {
	t.Parallel()
	issuer := issuerOf(t, acme)
	socket := filepath.Join(t.TempDir(), "agent.sock")
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	dead.SetUnlinkOnClose(false)
	_ = dead.Close() // the state after kill -9

	endpoint, err := issuer.ServeWorkload(socket, agent)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(socket); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("socket: got %v, %v, want mode 0600", info, err)
	}
	if _, err := issuer.ServeWorkload(socket, agent); err == nil {
		t.Error("a socket that is served was taken over")
	}
	if err := errors.Join(endpoint.Close(), endpoint.Close()); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(socket); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("socket after Close: got %v, want none", err)
	}
}

package app

import (
	"net"
	"path/filepath"
	"strings"
	"testing"

	"github.com/brevet-dev/brevet/internal/devstack"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/spiffe/go-spiffe/v2/proto/spiffe/workload"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// fickle is a Workload API that gives one SVID on each stream, and then an error on which clients may give up for good.
// Without an issuer it gives only the error.
type fickle struct {
	workload.UnimplementedSpiffeWorkloadAPIServer
	issuer  *devstack.Issuer
	answers chan error
}

func (f *fickle) FetchX509SVID(_ *workload.X509SVIDRequest, stream grpc.ServerStreamingServer[workload.X509SVIDResponse]) error {
	if f.issuer == nil {
		return status.Error(codes.InvalidArgument, "what?")
	}
	id := spiffeid.RequireFromPath(f.issuer.TrustDomain(), "/brevet")
	svid, err := f.issuer.X509SVID(id)
	if err != nil {
		return err
	}
	chain, key, err := svid.MarshalRaw()
	if err != nil {
		return err
	}
	authority, _ := f.issuer.CA()
	err = stream.Send(&workload.X509SVIDResponse{Svids: []*workload.X509SVID{{
		SpiffeId: id.String(), X509Svid: chain, X509SvidKey: key, Bundle: authority.Raw,
	}}})
	if err != nil {
		return err
	}
	select {
	case answer := <-f.answers:
		return answer
	case <-stream.Context().Done():
		return nil
	}
}

func serveFickle(t *testing.T) (*fickle, string) {
	t.Helper()
	socket := filepath.Join(testkit.SocketFolder(t), "agent.sock")
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	f := &fickle{issuer: testkit.NewIssuer(t, "acme.example"), answers: make(chan error)}
	server := grpc.NewServer()
	workload.RegisterSpiffeWorkloadAPIServer(server, f)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(listener)
	}()
	t.Cleanup(func() { server.Stop(); <-done })
	return f, "unix://" + socket
}

// TestWorkloadAPIIsRetriedAfterTheFirstSVID checks that the broker calls a Workload API again after any error that follows a first
// response. Otherwise it would serve with its old certificate, even after that has expired.
func TestWorkloadAPIIsRetriedAfterTheFirstSVID(t *testing.T) {
	t.Parallel()
	f, address := serveFickle(t)
	s := &service{}
	t.Cleanup(s.close)
	certificate, err := s.openCertificate(t.Context(), TLSConfig{WorkloadAPI: address})
	if err != nil {
		t.Fatal(err)
	}
	serial := func() string {
		pair, err := certificate.get(nil)
		if err != nil {
			t.Fatal(err)
		}
		return string(pair.Certificate[0])
	}
	for _, answer := range []error{
		status.Error(codes.Canceled, "going"), status.Error(codes.InvalidArgument, "what?"), status.Error(codes.PermissionDenied, "no identity"),
	} {
		before := serial()
		f.answers <- answer
		within(t, patience, "another certificate after "+answer.Error(), func() bool { return serial() != before })
	}
}

// TestPermanentWorkloadAPIErrorPreventsStart checks that a starting broker reports an error that a retry would not change.
func TestPermanentWorkloadAPIErrorPreventsStart(t *testing.T) {
	t.Parallel()
	f, address := serveFickle(t)
	f.issuer = nil
	_, err := (&service{}).openCertificate(t.Context(), TLSConfig{WorkloadAPI: address})
	if status.Code(err) != codes.InvalidArgument || !strings.HasPrefix(err.Error(), "tls.workload_api: ") {
		t.Errorf("got %v, want what was answered", err)
	}
}

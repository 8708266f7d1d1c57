package devstack

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/spiffe/go-spiffe/v2/bundle/jwtbundle"
	"github.com/spiffe/go-spiffe/v2/bundle/spiffebundle"
	"github.com/spiffe/go-spiffe/v2/proto/spiffe/workload"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/svid/jwtsvid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"
)

// Endpoint serves the Workload API on a Unix socket, for one workload.
type Endpoint struct {
	socket string
	server *grpc.Server
	done   chan struct{}
}

// ServeWorkload serves the standard SPIFFE Workload API on a Unix socket. Any process that can open the socket counts as
// the workload; SPIRE would check the process instead. The socket has mode 0600. ServeWorkload replaces a socket that a
// dead process left behind, and returns an error if another process serves it. Streams get a message at each rotation and
// federation, and a new X.509-SVID after half of the old one's lifetime.
func (i *Issuer) ServeWorkload(socket string, id spiffeid.ID) (*Endpoint, error) {
	return i.ServeIdentities(socket, func() []WorkloadIdentity { return []WorkloadIdentity{{ID: id}} })
}

// WorkloadIdentity is one of the identities of a workload.
type WorkloadIdentity struct {
	ID spiffeid.ID
	// Hint is the operator's name for the identity, such as "internal"; it may be empty.
	Hint string
}

// ServeIdentities is like ServeWorkload for a workload that has several identities, or none. A workload without identities
// gets the response that SPIRE gives to a workload without an entry. The identities may change; Announce then notifies
// clients.
func (i *Issuer) ServeIdentities(socket string, identities func() []WorkloadIdentity) (*Endpoint, error) {
	for _, one := range identities() {
		if err := i.check(one.ID); err != nil {
			return nil, fmt.Errorf("serving the Workload API: %w", err)
		}
	}
	listener, err := listenPrivate(socket)
	if err != nil {
		return nil, fmt.Errorf("serving the Workload API: %w", err)
	}
	server := grpc.NewServer(grpc.UnaryInterceptor(requireHeaderUnary), grpc.StreamInterceptor(requireHeaderStream))
	workload.RegisterSpiffeWorkloadAPIServer(server, &workloadAPI{issuer: i, identities: identities})
	e := &Endpoint{socket: socket, server: server, done: make(chan struct{})}
	go func() {
		defer close(e.done)
		_ = server.Serve(listener) // returns only after Close
	}()
	return e, nil
}

// Addr returns the socket's address in the form that SPIFFE_ENDPOINT_SOCKET takes.
func (e *Endpoint) Addr() string { return "unix://" + e.socket }

// Close closes all streams and removes the socket.
func (e *Endpoint) Close() error {
	select {
	case <-e.done:
		return nil
	default:
	}
	e.server.Stop()
	<-e.done
	if err := os.Remove(e.socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("removing the socket: %w", err)
	}
	return nil
}

// listenPrivate restricts the socket's mode before the socket gets the name that clients know.
func listenPrivate(socket string) (net.Listener, error) {
	fresh := socket + ".new"
	if len(fresh) > maxSocketPath {
		return nil, fmt.Errorf("socket path %s is too long: %d bytes, at most %d", socket, len(socket), maxSocketPath-len(".new"))
	}
	if conn, err := net.Dial("unix", socket); err == nil { //nolint:noctx // local, answers at once
		return nil, errors.Join(fmt.Errorf("%s is served already", socket), conn.Close())
	}
	if err := os.Remove(fresh); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: fresh, Net: "unix"})
	if err != nil {
		return nil, err
	}
	listener.SetUnlinkOnClose(false) // it would unlink the temporary name
	err = os.Chmod(fresh, 0o600)
	if err == nil {
		err = os.Rename(fresh, socket)
	}
	if err != nil {
		return nil, errors.Join(err, listener.Close(), os.Remove(fresh))
	}
	return listener, nil
}

// requireHeader refuses requests that a tricked browser or proxy could send (SPIFFE Workload Endpoint, section 5).
func requireHeader(ctx context.Context) error {
	incoming, _ := metadata.FromIncomingContext(ctx)
	if values := incoming.Get("workload.spiffe.io"); len(values) != 1 || values[0] != "true" {
		return status.Error(codes.InvalidArgument, "security header missing from request")
	}
	return nil
}

func requireHeaderUnary(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	if err := requireHeader(ctx); err != nil {
		return nil, err
	}
	return next(ctx, req)
}

func requireHeaderStream(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	if err := requireHeader(stream.Context()); err != nil {
		return err
	}
	return next(srv, stream)
}

// workloadAPI serves one workload. It does not serve the WIT-SVID profile: clients get Unimplemented, as the standard
// provides.
type workloadAPI struct {
	workload.UnimplementedSpiffeWorkloadAPIServer

	issuer     *Issuer
	identities func() []WorkloadIdentity
}

// errNoIdentity is the error that SPIRE's agent returns to a workload without an entry.
var errNoIdentity = status.Error(codes.PermissionDenied, "no identity issued")

// sendFunc sends one message of a stream and returns the time until that message needs renewal; zero means never.
type sendFunc func(own *spiffebundle.Bundle, federated []*spiffebundle.Bundle) (renewal time.Duration, err error)

// push sends a message immediately, at each change of a bundle, and when the last message needs renewal.
func push(ctx context.Context, issuer *Issuer, send sendFunc) error {
	for {
		own, federated, changed := issuer.bundles()
		renewal, err := send(own, federated)
		if err != nil {
			return err
		}
		var due <-chan time.Time
		if renewal > 0 {
			due = time.After(renewal)
		}
		select {
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		case <-changed:
		case <-due:
		}
	}
}

func (w *workloadAPI) FetchX509SVID(
	_ *workload.X509SVIDRequest, stream grpc.ServerStreamingServer[workload.X509SVIDResponse],
) error {
	return push(stream.Context(), w.issuer, func(own *spiffebundle.Bundle, federated []*spiffebundle.Bundle) (time.Duration, error) {
		var all []*workload.X509SVID
		for _, identity := range w.identities() {
			svid, err := w.issuer.X509SVID(identity.ID)
			if err != nil {
				return 0, status.Error(codes.Internal, err.Error())
			}
			certs, key, err := svid.MarshalRaw()
			if err != nil {
				return 0, status.Error(codes.Internal, err.Error())
			}
			all = append(all, &workload.X509SVID{
				SpiffeId: identity.ID.String(), X509Svid: certs, X509SvidKey: key, Bundle: derOf(own), Hint: identity.Hint,
			})
		}
		if len(all) == 0 {
			return 0, errNoIdentity
		}
		return w.issuer.cfg.X509TTL / 2, stream.Send(&workload.X509SVIDResponse{Svids: all, FederatedBundles: x509Bundles(federated)})
	})
}

func (w *workloadAPI) FetchX509Bundles(
	_ *workload.X509BundlesRequest, stream grpc.ServerStreamingServer[workload.X509BundlesResponse],
) error {
	return push(stream.Context(), w.issuer, func(own *spiffebundle.Bundle, federated []*spiffebundle.Bundle) (time.Duration, error) {
		return 0, stream.Send(&workload.X509BundlesResponse{Bundles: x509Bundles(append(federated, own))})
	})
}

func (w *workloadAPI) FetchJWTBundles(
	_ *workload.JWTBundlesRequest, stream grpc.ServerStreamingServer[workload.JWTBundlesResponse],
) error {
	return push(stream.Context(), w.issuer, func(own *spiffebundle.Bundle, federated []*spiffebundle.Bundle) (time.Duration, error) {
		bundles := make(map[string][]byte)
		for _, bundle := range append(federated, own) {
			text, err := bundle.JWTBundle().Marshal()
			if err != nil {
				return 0, status.Error(codes.Internal, err.Error())
			}
			bundles[bundle.TrustDomain().IDString()] = text
		}
		return 0, stream.Send(&workload.JWTBundlesResponse{Bundles: bundles})
	})
}

func (w *workloadAPI) FetchJWTSVID(_ context.Context, req *workload.JWTSVIDRequest) (*workload.JWTSVIDResponse, error) {
	if len(req.GetAudience()) == 0 {
		return nil, status.Error(codes.InvalidArgument, "audience must be specified")
	}
	var all []*workload.JWTSVID
	for _, identity := range w.identities() {
		if asked := req.GetSpiffeId(); asked != "" && asked != identity.ID.String() {
			continue
		}
		token, err := w.issuer.JWTSVID(identity.ID, req.GetAudience()...)
		if err != nil {
			return nil, status.Error(codes.Internal, err.Error())
		}
		all = append(all, &workload.JWTSVID{SpiffeId: identity.ID.String(), Svid: token, Hint: identity.Hint})
	}
	if len(all) == 0 {
		return nil, errNoIdentity
	}
	return &workload.JWTSVIDResponse{Svids: all}, nil
}

func (w *workloadAPI) ValidateJWTSVID(
	_ context.Context, req *workload.ValidateJWTSVIDRequest,
) (*workload.ValidateJWTSVIDResponse, error) {
	if req.GetAudience() == "" {
		return nil, status.Error(codes.InvalidArgument, "audience must be specified")
	}
	if req.GetSvid() == "" {
		return nil, status.Error(codes.InvalidArgument, "svid must be specified")
	}
	own, federated, _ := w.issuer.bundles()
	trusted := jwtbundle.NewSet(own.JWTBundle())
	for _, bundle := range federated {
		trusted.Add(bundle.JWTBundle())
	}
	svid, err := jwtsvid.ParseAndValidate(req.GetSvid(), trusted, []string{req.GetAudience()})
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	if !svid.Expiry.After(w.issuer.cfg.Now()) { // go-spiffe tolerates a minute
		return nil, status.Error(codes.InvalidArgument, "token has expired")
	}
	claims, err := structpb.NewStruct(svid.Claims)
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	return &workload.ValidateJWTSVIDResponse{SpiffeId: svid.ID.String(), Claims: claims}, nil
}

// x509Bundles leaves out trust domains without X.509 authorities: an empty bundle is not valid.
func x509Bundles(bundles []*spiffebundle.Bundle) map[string][]byte {
	found := make(map[string][]byte)
	for _, bundle := range bundles {
		if der := derOf(bundle); len(der) > 0 {
			found[bundle.TrustDomain().IDString()] = der
		}
	}
	return found
}

func derOf(bundle *spiffebundle.Bundle) []byte {
	var all [][]byte
	for _, cert := range bundle.X509Authorities() {
		all = append(all, cert.Raw)
	}
	return bytes.Join(all, nil)
}

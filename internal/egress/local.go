package egress

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/brevet-dev/brevet/internal/private"
	"github.com/brevet-dev/brevet/internal/secret"
	"golang.org/x/sync/errgroup"
)

// The files of a gateway's folder.
const (
	caFile         = "ca.pem"
	addressFile    = "address"
	passwordFile   = "password"
	databaseSocket = ".s.PGSQL.5432" // where libpq looks for it
)

// Local are the listeners of a gateway for programs of one sandbox on this machine.
type Local struct {
	Endpoint
	gateway          *Gateway
	proxy, databases net.Listener
}

// Alone returns the listeners of a sandbox that nobody else can reach, such as those in its own network. They need no password.
func (g *Gateway) Alone(at Endpoint, proxy, databases net.Listener) *Local {
	return &Local{at, g, proxy, databases}
}

// ListenUnix opens a Unix socket at path for the calls of one sandbox, without a password, and beside it the socket of
// [SocketEndpoint] for PostgreSQL and the file with the certificate of the gateway's authority. A sandbox that has the folder
// needs nothing else.
func (g *Gateway) ListenUnix(path string, access private.Access) (_ *Local, err error) {
	at, mode := SocketEndpoint(path), os.FileMode(0o700)
	if access != (private.Access{}) {
		mode = 0o755 // others have to reach the socket
	}
	if err := os.MkdirAll(at.Databases, mode); err != nil {
		return nil, fmt.Errorf("creating the socket's folder: %w", err)
	}
	// A gateway that runs with the folder has this socket, and its sandbox needs its certificate. So nothing is replaced before the
	// socket is open. The other socket comes last: who waits for it finds the certificate.
	databases, err := private.ListenFor(filepath.Join(at.Databases, databaseSocket), access)
	if err != nil {
		return nil, err
	}
	if err := g.WriteCA(at.CA); err != nil {
		return nil, errors.Join(err, databases.Close())
	}
	proxy, err := private.ListenFor(path, access)
	if err != nil {
		return nil, errors.Join(err, databases.Close())
	}
	return g.Alone(at, proxy, databases), nil
}

// SocketEndpoint returns what a gateway with the Unix socket at path has in the socket's folder. It has no address: a forwarder
// has one for it.
func SocketEndpoint(path string) Endpoint {
	dir := filepath.Dir(path)
	return Endpoint{CA: filepath.Join(dir, caFile), Databases: dir}
}

// WriteCA writes the certificate of the gateway's authority to a file that every user may read, if nobody else can replace it.
func (g *Gateway) WriteCA(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("creating the gateway's folder: %w", err)
	}
	if err := private.CheckFolderOf(path); err != nil {
		return fmt.Errorf("writing the certificate of the gateway's authority: %w", err)
	}
	if err := secret.WritePublicFile(path, string(g.CA())); err != nil {
		return fmt.Errorf("writing the certificate of the gateway's authority: %w", err)
	}
	return nil
}

// Listen opens a TCP listener with a password, and a PostgreSQL socket in the folder dir. It writes the files to dir with which
// programs find them. The password gives access to nothing else, and ends with the gateway.
func (g *Gateway) Listen(ctx context.Context, address, dir string) (_ *Local, err error) {
	proxy, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listening on %s: %w", address, err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, proxy.Close())
		}
	}()
	at := endpoint(proxy.Addr().String(), rand.Text(), dir)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("creating the gateway's folder: %w", err)
	}
	// A gateway that runs with the folder has this socket, and its files must stay.
	databases, err := private.ListenFor(filepath.Join(dir, databaseSocket), private.Access{})
	if err != nil {
		return nil, err
	}
	for name, text := range map[string]string{caFile: string(g.CA()), addressFile: at.Address, passwordFile: at.Password.Reveal()} {
		if err := secret.WriteFile(filepath.Join(dir, name), text); err != nil {
			return nil, errors.Join(fmt.Errorf("writing the gateway's files: %w", err), databases.Close())
		}
	}
	return &Local{at, g, proxy, databases}, nil
}

func endpoint(address, password, dir string) Endpoint {
	return Endpoint{Address: address, Password: secret.New(password), CA: filepath.Join(dir, caFile), Databases: dir}
}

// Serve serves calls and database connections of the sandbox until ctx ends or the gateway is closed.
func (l *Local) Serve(ctx context.Context, sandbox *Sandbox) error {
	tasks, ctx := errgroup.WithContext(ctx)
	who := Alone(sandbox)
	if l.Password.Reveal() != "" {
		who = WithPassword(sandbox, l.Password)
	}
	tasks.Go(func() error { return l.gateway.Serve(ctx, l.proxy, who) })
	tasks.Go(func() error { return l.gateway.ServePostgres(ctx, l.databases, sandbox) })
	return tasks.Wait()
}

// ErrNoAddress means that the file with a gateway's address is damaged.
var ErrNoAddress = errors.New("contains no address")

// ErrNotPrivate means that somebody else may have written a gateway's folder. A shell must not trust its proxy and its CA.
var ErrNotPrivate = errors.New("is a link, or belongs to another user, or others can write to it")

// ReadEndpoint reads the files of a gateway's folder. The error is [fs.ErrNotExist] if no gateway was started with the folder,
// and [ErrNotPrivate] if anybody but the current user and root could have written it.
func ReadEndpoint(dir string) (Endpoint, error) {
	for _, path := range []string{dir, filepath.Join(dir, addressFile), filepath.Join(dir, passwordFile), filepath.Join(dir, caFile)} {
		if err := checkPrivate(path); err != nil {
			return Endpoint{}, err
		}
	}
	if err := checkPrivate(filepath.Join(dir, databaseSocket)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return Endpoint{}, err
	}
	// Programs look in the folder for as long as they run, so nobody else may be able to replace it later either.
	real, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return Endpoint{}, fmt.Errorf("reading the gateway's folder: %w", err)
	}
	for _, path := range []string{dir, real} {
		if trusted, err := private.TrustedPath(path); err != nil || !trusted {
			return Endpoint{}, errors.Join(fmt.Errorf("a folder above %s %w", dir, ErrNotPrivate), err)
		}
	}
	address, err := os.ReadFile(filepath.Join(dir, addressFile))
	if err != nil {
		return Endpoint{}, fmt.Errorf("reading the gateway's address: %w", err)
	}
	if _, err := netip.ParseAddrPort(string(address)); err != nil {
		return Endpoint{}, fmt.Errorf("%s %w", filepath.Join(dir, addressFile), ErrNoAddress)
	}
	password, err := os.ReadFile(filepath.Join(dir, passwordFile))
	if err != nil {
		return Endpoint{}, fmt.Errorf("reading the gateway's password: %w", err)
	}
	return endpoint(string(address), string(password), dir), nil
}

func checkPrivate(path string) error {
	info, err := os.Lstat(path)
	if err != nil {
		return fmt.Errorf("reading the gateway's folder: %w", err)
	}
	if !private.Trusted(info) {
		return fmt.Errorf("%s %w", path, ErrNotPrivate)
	}
	return nil
}

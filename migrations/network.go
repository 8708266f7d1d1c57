package migrations

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// URLOption changes which URLs ParseURL accepts.
type URLOption func(*urlRules)

type urlRules struct{ insecureNetwork bool }

// InsecureNetwork accepts URLs that allow a connection over a network without TLS that verifies the server's name. Others on that
// network can then read and change what passes, and pose as the server.
func InsecureNetwork(r *urlRules) { r.insecureNetwork = true }

// InsecureHosts returns the hosts for which ParseURL needs InsecureNetwork. The error is ErrURL.
func InsecureHosts(databaseURL string) ([]string, error) {
	cfg, err := pgconn.ParseConfig(databaseURL) //nolint:forbidigo // it connects to nothing
	if err != nil {
		return nil, ErrURL // the cause quotes the URL
	}
	var hosts []string
	for _, e := range exposedHosts(cfg) {
		if !slices.Contains(hosts, e.host) {
			hosts = append(hosts, e.host)
		}
	}
	return hosts, nil
}

// exposure is a host that a connection may go to unprotected.
type exposure struct {
	host string
	tls  *tls.Config
}

func (e exposure) refusal() error {
	how := "without TLS (sslmode is disable, allow or prefer, and prefer is the default)"
	if e.tls != nil {
		how = "with TLS that does not verify the server's name (sslmode is require or verify-ca)"
	}
	return fmt.Errorf("%w: the connection to %q may be %s. Others on the network could read and change the record on its way, and pose "+
		"as the server. Set sslmode=verify-full and sslrootcert in the URL, or use a Unix socket or a loopback address. To accept the "+
		"risk, set postgres.insecure_network (commands: --insecure-network)", ErrNetwork, e.host, how)
}

// targets returns all places that a connection may go to: several hosts, and for some sslmodes each with and without TLS.
func targets(cfg *pgconn.Config) []*pgconn.FallbackConfig {
	first := &pgconn.FallbackConfig{Host: cfg.Host, Port: cfg.Port, TLSConfig: cfg.TLSConfig}
	return append([]*pgconn.FallbackConfig{first}, cfg.Fallbacks...)
}

// exposedHosts returns the hosts that nothing protects, those without TLS first.
func exposedHosts(cfg *pgconn.Config) (exposed []exposure) {
	for _, t := range targets(cfg) {
		verified := t.TLSConfig != nil && !t.TLSConfig.InsecureSkipVerify && t.TLSConfig.ServerName == t.Host
		if !verified && !onThisMachine(t) {
			exposed = append(exposed, exposure{t.Host, t.TLSConfig})
		}
	}
	slices.SortStableFunc(exposed, func(a, b exposure) int {
		switch {
		case a.tls == nil && b.tls != nil:
			return -1
		case a.tls != nil && b.tls == nil:
			return 1
		}
		return 0
	})
	return exposed
}

func onThisMachine(t *pgconn.FallbackConfig) bool {
	if network, _ := pgconn.NetworkAddress(t.Host, t.Port); network == "unix" {
		return true
	}
	address, err := netip.ParseAddr(t.Host)
	return isLocalhost(t.Host) || err == nil && address.IsLoopback()
}

func isLocalhost(host string) bool { return strings.EqualFold(host, "localhost") }

// keepLocalhost makes the name localhost mean this machine, whatever the resolver says.
func keepLocalhost(cfg *pgconn.Config) {
	resolve := cfg.LookupFunc
	cfg.LookupFunc = func(ctx context.Context, host string) ([]string, error) {
		found, err := resolve(ctx, host)
		if err != nil || !isLocalhost(host) {
			return found, err
		}
		found = slices.DeleteFunc(found, func(text string) bool {
			address, err := netip.ParseAddr(text)
			return err != nil || !address.IsLoopback()
		})
		if len(found) == 0 {
			return nil, &net.DNSError{Err: "not a loopback address", Name: host}
		}
		return found, nil
	}
}

const (
	onlySCRAM = "scram-sha-256"
	// noPassword is for a login that has no password: the server knows it by its Unix user or its certificate.
	noPassword = "none"
)

// requireSCRAM makes the client refuse a server that asks for the password in clear or as MD5, or that does not prove that it
// knows the password. Over TLS, SCRAM is bound to the server's certificate, unless the URL says channel_binding=disable.
func requireSCRAM(cfg *pgconn.Config) error {
	switch cfg.RequireAuth {
	case onlySCRAM, noPassword:
	case "":
		if cfg.RequireAuth = onlySCRAM; cfg.Password == "" {
			cfg.RequireAuth = onlySCRAM + "," + noPassword
		}
	default:
		return fmt.Errorf("%w: require_auth is %q. The server would learn the password, or need not prove that it knows it. Remove "+
			"require_auth, or set it to %s", ErrPasswordMethod, cfg.RequireAuth, onlySCRAM)
	}
	withoutTLS := func(t *pgconn.FallbackConfig) bool { return t.TLSConfig == nil }
	if cfg.RequireAuth == onlySCRAM && cfg.ChannelBinding == "prefer" && !slices.ContainsFunc(targets(cfg), withoutTLS) {
		cfg.ChannelBinding = "require"
	}
	return nil
}

// connect connects, and says what to do if this client refuses the server.
func connect(ctx context.Context, cfg *pgx.ConnConfig) (*pgx.Conn, error) {
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if advice := Refusal(err); advice != "" {
		return nil, fmt.Errorf("connecting: %s: %w", advice, err)
	}
	if err != nil {
		return nil, fmt.Errorf("connecting: %w", err)
	}
	return conn, nil
}

// Refusal says why a connection with a configuration of ParseURL refused a server, and what to do. It returns "" for every other
// error. pgx has no types for these errors.
func Refusal(err error) string {
	if err == nil {
		return ""
	}
	text := err.Error()
	switch {
	case strings.Contains(text, "authentication method requirement"):
		return "the server does not check the password with SCRAM. Set scram-sha-256 in pg_hba.conf, and set the password again if it is " +
			"stored as MD5. If the login needs no password, remove it from the URL"
	case strings.Contains(text, "channel binding"):
		return "the server cannot bind SCRAM to its certificate. Behind a pooler, or with a certificate that is signed with Ed25519, set " +
			"channel_binding=disable in the URL"
	case strings.Contains(text, "server refused TLS connection"):
		return "the server has no TLS. Set ssl = on in postgresql.conf"
	}
	return ""
}

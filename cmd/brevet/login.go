package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/login"
	"github.com/brevet-dev/brevet/internal/private"
	"github.com/brevet-dev/brevet/internal/safetext"
	"github.com/brevet-dev/brevet/openapi"
	"github.com/spiffe/go-spiffe/v2/bundle/x509bundle"
	"github.com/spiffe/go-spiffe/v2/spiffetls/tlsconfig"
	"github.com/spiffe/go-spiffe/v2/workloadapi"
	"golang.org/x/net/http/httpproxy"
	"golang.org/x/oauth2"
)

// loginStore returns the login in the user's configuration folder.
func loginStore() (*login.Store, error) {
	dir, err := os.UserConfigDir()
	if err != nil {
		return nil, fmt.Errorf("finding the folder for the login: %w", err)
	}
	return &login.Store{
		Path: filepath.Join(dir, "brevet", "login.json"), Now: time.Now,
		Proxy: http.ProxyFromEnvironment, Network: login.Network{Proxy: proxyOfProviders(), Roots: systemRoots()},
	}, nil
}

// proxyOfProviders returns the proxy that the variables name for https, whatever NO_PROXY excludes: without a proxy, only the
// provider gets what is sent.
func proxyOfProviders() string {
	named := httpproxy.FromEnvironment()
	named.NoProxy = ""
	proxy, err := named.ProxyFunc()(&url.URL{Scheme: "https", Host: "provider.invalid"})
	switch {
	case err != nil:
		return "invalid" // every call fails
	case proxy == nil:
		return ""
	}
	proxy.User = nil
	return proxy.String()
}

// systemRoots returns the variables that replace the roots of the system, with absolute paths.
func systemRoots() string {
	var all []string
	for _, name := range []string{"SSL_CERT_FILE", "SSL_CERT_DIR"} {
		paths := filepath.SplitList(os.Getenv(name))
		for i, path := range paths {
			paths[i] = located(path)
		}
		if len(paths) > 0 {
			all = append(all, name+"="+strings.Join(paths, string(filepath.ListSeparator)))
		}
	}
	return strings.Join(all, " ")
}

// located returns an absolute path, because a relative one leads elsewhere in another folder. It keeps "..", which leads elsewhere
// after a link.
func located(path string) string {
	work, err := os.Getwd()
	switch {
	case filepath.IsAbs(path) && strings.Contains(path, ".."), err != nil:
		return path
	case strings.Contains(path, ".."):
		return work + "/" + path
	case filepath.IsAbs(path):
		return filepath.Clean(path)
	default:
		return filepath.Join(work, path)
	}
}

// LoginCmd is `brevet login`. The login is for one server: no other gets its tokens.
type LoginCmd struct {
	PersonFlags

	Issuer   string   `help:"Issuer of your OpenID Connect provider." required:"" env:"BREVET_OIDC_ISSUER"`
	ClientID string   `help:"OAuth client whose ID tokens the broker accepts." name:"client-id" required:"" env:"BREVET_OIDC_CLIENT_ID"`
	Scopes   []string `help:"Scopes to request from the provider. Default: openid, and those of profile, groups and offline_access that it supports." name:"oidc-scopes"`
}

// Run runs the device flow: the browser may be on another machine.
func (c *LoginCmd) Run(ctx context.Context, con *console) error {
	return c.logIn(ctx, con, nil)
}

// logIn runs the device flow. If agree is set, it approves the login on the provider's page, and logIn does not ask the
// user to.
func (c *LoginCmd) logIn(ctx context.Context, con *console, agree func(context.Context, *oauth2.DeviceAuthResponse) error) error {
	store, err := loginStore()
	if err != nil {
		return err
	}
	if store.Server, err = c.loginServer(); err != nil {
		return err
	}
	provider, err := store.Provider(ctx, c.Issuer, c.ClientID)
	if err != nil {
		return err
	}
	defer provider.Close()
	device, err := provider.Begin(ctx, c.Scopes)
	if err != nil {
		return err
	}
	stop := func() {}
	if agree != nil {
		err = agree(ctx, device)
	} else if err = printDevice(con, store.Server, device); err == nil {
		stop = showWaiting(con, "waiting for you", device.Expiry)
	}
	if err != nil {
		return err
	}
	l, err := provider.Finish(ctx, device)
	stop()
	if err != nil {
		return err
	}
	l.Server, l.Network = store.Server, store.Network
	if err := store.Write(l); err != nil {
		return fmt.Errorf("storing the login: %w", err)
	}
	return printLogin(con, l)
}

// printDevice names the server that gets the login, which a variable may have chosen.
func printDevice(con *console, server login.Server, device *oauth2.DeviceAuthResponse) error {
	if con.json {
		return con.encode(map[string]any{
			"server": server.URL, "verification_uri": device.VerificationURI, "verification_uri_complete": device.VerificationURIComplete,
			"user_code": device.UserCode, "expires_at": device.Expiry,
		})
	}
	address := cmp.Or(device.VerificationURIComplete, device.VerificationURI)
	code := bold(con.err, safetext.Text(device.UserCode))
	_, err := fmt.Fprintf(con.err, "This login is for the server %s.\nOpen this page in a browser and continue if it shows the code %s:\n\n  %s\n\n",
		server, code, safetext.Text(address))
	return err
}

func printLogin(con *console, l login.Login) error {
	until := dateTime(l.Expires)
	if l.Renewable() {
		until += ", renewed automatically"
	}
	return con.print(loginFacts(l), "name     %s\nid       %s\ngroups   %s\nserver   %s\nuntil    %s\n",
		safetext.Text(l.Name), safetext.Text(l.ID), orDash(strings.Join(l.Groups, ", ")), l.Server, until)
}

func loginFacts(l login.Login) map[string]any {
	return map[string]any{
		"id": l.ID, "name": l.Name, "groups": append([]string{}, l.Groups...), "server": l.Server.URL,
		"expires_at": l.Expires, "renewable": l.Renewable(),
	}
}

// LogoutCmd is `brevet logout`.
type LogoutCmd struct{}

// Run deletes the stored login and revokes its refresh token at the provider, if possible. An unavailable provider does not
// prevent a logout.
func (*LogoutCmd) Run(ctx context.Context, con *console) error {
	store, err := loginStore()
	if err != nil {
		return fmt.Errorf("deleting the login: %w", err)
	}
	text := "logged out"
	l, err := store.Read()
	if errors.Is(err, login.ErrEnded) {
		text = "you were not logged in"
	} else if err := os.Remove(store.Path); err != nil {
		return fmt.Errorf("deleting the login: %w", err)
	}
	if err == nil { // otherwise the stored login could not be read
		if err := store.Revoke(ctx, l); err != nil {
			con.say("the refresh token was not revoked at the provider: " + login.Quote(err.Error()))
		}
	}
	return con.print(map[string]bool{"logged_in": false}, "%s\n", text)
}

// WhoamiCmd is `brevet whoami`.
type WhoamiCmd struct{ serverFlags }

// Run prints what the provider said at the last login or renewal. With a broker, it prints how the broker identifies the
// caller, and how to act as somebody else.
func (c *WhoamiCmd) Run(ctx context.Context, con *console) error {
	if c.Server == "" {
		l, err := currentLogin()
		if err != nil {
			return err
		}
		return printLogin(con, l)
	}
	flags := OfficialFlags(c.serverFlags)
	flags.quiet = true
	return call(ctx, con, flags, func(broker *client.Client) (err error) {
		var l login.Login
		if flags.asPerson() {
			if l, err = currentLogin(); err != nil {
				return err
			}
		}
		me, err := broker.WhoAmI(ctx)
		if err == nil {
			_, instead := flags.identity(ctx)
			return printCaller(con, me, l, instead)
		}
		if flags.asPerson() && !con.json { // the broker may not accept this login
			_ = printLogin(con, l)
		}
		return err
	})
}

func currentLogin() (login.Login, error) {
	store, err := loginStore()
	if err != nil {
		return login.Login{}, err
	}
	l, err := store.Read()
	if err == nil && !l.Renewable() && !time.Now().Before(l.Expires) {
		return l, login.ErrEnded
	}
	return l, err
}

// loggedIn reports whether there is a login. One that cannot be read counts: the command then says so, and does not act as somebody
// else. Without a folder for logins, as in a container without HOME, there is none.
func loggedIn() bool {
	store, err := loginStore()
	if err != nil {
		return false
	}
	_, err = store.Read()
	return !errors.Is(err, login.ErrEnded)
}

// printCaller prints the caller, what the broker says about it, and how to act as somebody else. l is empty for a workload.
func printCaller(con *console, me openapi.Caller, l login.Login, instead string) error {
	person := me.Kind == openapi.CallerPerson
	if con.json && !person {
		return con.encode(struct {
			openapi.Caller
			Instead string `json:"instead,omitempty"`
		}{me, instead})
	}
	if con.json {
		facts := loginFacts(l)
		facts["kind"], facts["roles"] = me.Kind, me.Roles
		if instead != "" {
			facts["instead"] = instead
		}
		return con.encode(facts)
	}
	if !person {
		fmt.Fprintf(con.out, "id       %s\n", safetext.Text(me.ID))
	} else if err := printLogin(con, l); err != nil {
		return err
	}
	var roles []string
	for _, role := range me.Roles {
		roles = append(roles, safetext.Text(roleLine(role)))
	}
	if instead != "" {
		instead = "instead  " + safetext.Text(instead) + "\n"
	}
	_, err := fmt.Fprintf(con.out, "roles    %s\n%s", cmp.Or(strings.Join(roles, "\n         "), "-"), instead)
	return err
}

func roleLine(r openapi.CallerRole) string {
	line := string(r.Role)
	if r.Role == openapi.RoleResourceServer {
		return line + " for " + strings.Join(r.Audiences, ", ")
	}
	if !r.BootstrapUntil.IsZero() {
		line += " (bootstrap until " + dateTime(r.BootstrapUntil) + ")"
	}
	return line + " in " + strings.Join(r.Within, ", ")
}

// PersonFlags say which broker to call as the logged-in person, and how to verify the broker.
type PersonFlags struct {
	Server      string `help:"URL of the broker." required:"" env:"BREVET_SERVER"`
	ServerID    string `help:"SPIFFE ID of the broker's SVID. Without it, the system's roots must verify the broker's certificate." env:"BREVET_SERVER_ID"`
	CAFile      string `help:"PEM file with the roots for the broker's certificate, instead of the system's." name:"ca-file" env:"BREVET_CA_FILE"`
	WorkloadAPI string `help:"Workload API socket with the broker's authorities, for --server-id without --ca-file." name:"workload-api" env:"SPIFFE_ENDPOINT_SOCKET"`
}

// open returns a client and a function that closes it. If nobody is logged in, it fails before it calls the broker.
func (f PersonFlags) open(ctx context.Context) (*client.Client, func(), error) {
	person, err := loginStore()
	if err == nil {
		person.Server, err = f.loginServer()
	}
	if err == nil {
		_, err = person.IDToken(ctx)
	}
	if err != nil {
		return nil, nil, err
	}
	verify, done, err := f.verifier(ctx)
	if err != nil {
		return nil, nil, err
	}
	anyone, err := client.New(client.Config{BaseURL: f.Server}, verify...)
	if err != nil {
		done()
		return nil, nil, err
	}
	closeAll := func() { anyone.Close(); done() }
	c, err := anyone.AsPerson(person)
	if err != nil {
		closeAll()
	}
	return c, closeAll, err
}

// loginServer describes the server that the flags name, to compare it with the server of the login.
func (f PersonFlags) loginServer() (s login.Server, err error) {
	at, err := url.Parse(f.Server)
	if err != nil || at.Host == "" {
		return s, fmt.Errorf("--server: %s is not a URL", quote(f.Server))
	}
	s.URL, s.ID = strings.ToLower(at.Scheme+"://"+at.Host), f.ServerID
	socket, isSocket := socketPath(f.WorkloadAPI)
	switch {
	case f.CAFile != "":
		s.Roots = located(f.CAFile)
	case f.ServerID == "":
		s.Roots = systemRoots()
	case isSocket:
		// The sockets of a folder that nobody else can write to have the same roots. A dev stack has one for each workload.
		s.Roots = socket
		if folder := filepath.Dir(socket); isOwn(folder) {
			s.Roots = folder
		}
	default:
		s.Roots = f.WorkloadAPI
	}
	return s, err
}

// isOwn reports whether only the current user and root can write to a folder.
func isOwn(folder string) bool {
	info, err := os.Lstat(folder)
	return err == nil && private.Trusted(info)
}

func (f PersonFlags) identity(context.Context) (acting, instead string) { return f.who(), "" }

// who names the person who is logged in.
func (PersonFlags) who() string {
	store, err := loginStore()
	if err == nil {
		var l login.Login
		if l, err = store.Read(); err == nil {
			return fmt.Sprintf("%s (%s)", l.Name, l.ID)
		}
	}
	return "a person"
}

// verifier returns how the client verifies the broker, and a function that ends that.
func (f PersonFlags) verifier(ctx context.Context) (options []client.Option, done func(), err error) {
	done = func() {}
	flags := CallerFlags{ServerID: f.ServerID, CAFile: f.CAFile}
	if f.ServerID == "" {
		roots, err := flags.roots()
		if err != nil || roots == nil {
			return nil, done, err
		}
		return []client.Option{client.WithRoots(roots)}, done, nil
	}
	id, err := flags.serverID()
	if err != nil {
		return nil, nil, err
	}
	var bundles x509bundle.Source
	switch {
	case f.CAFile != "":
		if bundles, err = x509bundle.Load(id.TrustDomain(), f.CAFile); err != nil {
			return nil, nil, fmt.Errorf("--ca-file: %w", err)
		}
	case f.WorkloadAPI == "":
		return nil, nil, errors.New("--server-id: requires --ca-file or --workload-api")
	default:
		ctx, cancel := context.WithTimeout(ctx, workloadTimeout)
		defer cancel()
		source, err := workloadapi.NewBundleSource(ctx, workloadapi.WithClientOptions(workloadapi.WithAddr(f.WorkloadAPI)))
		if err != nil {
			return nil, nil, fmt.Errorf("no bundle from the Workload API at %s: %w", f.WorkloadAPI, err)
		}
		bundles, done = source, func() { _ = source.Close() }
	}
	return []client.Option{client.WithServer(bundles, tlsconfig.AuthorizeID(id))}, done, nil
}

// hint adds advice if the broker does not accept the person, or if the broker cannot be verified.
func (f PersonFlags) hint(err error) error {
	if errors.Is(err, client.ErrUnauthenticated) {
		return fmt.Errorf("%w\nRun brevet login, and check with brevet whoami that the provider and the client match the broker", err)
	}
	return CallerFlags{ServerID: f.ServerID}.hint(err)
}

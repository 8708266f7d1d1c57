package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/brevet-dev/brevet/attest"
	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/app"
	"github.com/brevet-dev/brevet/internal/safehttp"
	"github.com/brevet-dev/brevet/internal/safetext"
	"github.com/brevet-dev/brevet/internal/wait"
	"github.com/brevet-dev/brevet/openapi"
	"github.com/spiffe/go-spiffe/v2/bundle/x509bundle"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/spiffetls/tlsconfig"
	"github.com/spiffe/go-spiffe/v2/svid/x509svid"
	"github.com/spiffe/go-spiffe/v2/workloadapi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// workloadTimeout bounds the wait for the first SVID. An agent that knows the workload responds at once.
const workloadTimeout = 10 * time.Second

// CallerFlags say which broker to call, and how to authenticate the caller.
type CallerFlags struct {
	Server      string `help:"URL of the broker." required:"" env:"BREVET_SERVER"`
	ServerID    string `help:"SPIFFE ID of the broker's SVID. Without it, the system's roots must verify the broker's certificate." env:"BREVET_SERVER_ID"`
	CAFile      string `help:"PEM file with the roots for the broker's certificate, instead of the system's. Not used with --server-id." name:"ca-file" env:"BREVET_CA_FILE" type:"path"`
	WorkloadAPI string `help:"Workload API socket to get the SVID from." name:"workload-api" required:"" env:"SPIFFE_ENDPOINT_SOCKET"`
	SVID        string `help:"SPIFFE ID or hint of the SVID to use, if the Workload API offers several." name:"svid" env:"BREVET_SVID"`
	JWT         bool   `help:"Authenticate with a JWT-SVID instead of an X.509-SVID." name:"jwt"`
	Audience    string `help:"With --jwt: the broker's issuer. Default: the URL of the broker." env:"BREVET_AUDIENCE"`
}

// open returns a client and a function that closes it.
func (f CallerFlags) open(ctx context.Context) (_ *client.Client, _ func(), err error) {
	if err := checkSocket(f.WorkloadAPI); err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, workloadTimeout)
	defer cancel()
	identity := client.NewIdentity(f.SVID)
	if err := f.firstSVID(ctx, identity); err != nil {
		return nil, nil, err
	}
	var closers []func()
	closeAll := func() {
		for _, end := range closers {
			end()
		}
	}
	defer func() {
		if err != nil {
			closeAll()
		}
	}()
	source, err := workloadapi.NewX509Source(ctx, workloadapi.WithClientOptions(app.WorkloadAPI(f.WorkloadAPI)...), workloadapi.WithDefaultX509SVIDPicker(identity.Pick))
	if err != nil {
		return nil, nil, f.noSVID(err)
	}
	closers = append(closers, func() { _ = source.Close() })
	var more []client.Option
	if f.JWT {
		tokens, err := workloadapi.NewJWTSource(ctx, workloadapi.WithClientOptions(app.WorkloadAPI(f.WorkloadAPI)...))
		if err != nil {
			return nil, nil, f.noSVID(err)
		}
		closers = append(closers, func() { _ = tokens.Close() })
		more = []client.Option{client.WithJWT(tokens, f.audience()), client.WithSubject(identity.ID())}
	}
	c, err := f.clientAs(source, source, more...)
	if err != nil {
		return nil, nil, err
	}
	closers = append(closers, c.Close)
	return c, closeAll, nil
}

// checkSocket returns an error if the Workload API's socket does not exist, for which go-spiffe would wait.
func checkSocket(workloadAPI string) error {
	socket, ok := socketPath(workloadAPI)
	if _, err := os.Stat(socket); ok && errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("no Workload API at %s: start the SPIFFE agent or brevet dev", workloadAPI)
	}
	return nil
}

// socketPath returns the file of the Workload API's socket, if it is a Unix socket, as go-spiffe and gRPC find it: unix:/path is
// unix:///path, and escapes count.
func socketPath(workloadAPI string) (string, bool) {
	at, err := url.Parse(workloadAPI)
	if err != nil || at.Scheme != "unix" || at.Host != "" || !filepath.IsAbs(at.Path) {
		return "", false
	}
	return filepath.Clean(at.Path), true
}

// withOption adds to a [client.IdentityError] the option that chooses an SVID, if there are SVIDs to choose from.
func withOption(err error, option string) error {
	if chosen, ok := errors.AsType[*client.IdentityError](err); ok && len(chosen.Given) > 0 {
		return fmt.Errorf("%w: set %s", err, option)
	}
	return err
}

// registeredWithin is how long a new registration entry may take to reach the agent.
const registeredWithin = 2 * time.Second

// firstSVID fetches the SVIDs once, so that the user sees at once that there is no entry, or that there are several SVIDs.
func (f CallerFlags) firstSVID(ctx context.Context, identity *client.Identity) error {
	for began := time.Now(); ; {
		svids, err := workloadapi.FetchX509SVIDs(ctx, workloadapi.WithAddr(f.WorkloadAPI))
		switch {
		case err == nil:
			identity.Pick(svids)
			return withOption(identity.Err(), "--svid or BREVET_SVID")
		case status.Code(err) != codes.PermissionDenied:
			return f.noSVID(err)
		case time.Since(began) > registeredWithin:
			return fmt.Errorf("the Workload API at %s returned %s: no registration entry selects this process: create one, or run this command as a registered workload",
				f.WorkloadAPI, safetext.Text(quote(status.Convert(err).Message())))
		}
		if !wait.For(ctx, 200*time.Millisecond) {
			return f.noSVID(ctx.Err())
		}
	}
}

// clientAs returns a client that authenticates with the X.509-SVIDs of one source, or with --jwt as more says. With
// --server-id, it verifies the broker with the bundles of the other source.
func (f CallerFlags) clientAs(svids x509svid.Source, bundles x509bundle.Source, more ...client.Option) (*client.Client, error) {
	roots, err := f.roots()
	if err != nil {
		return nil, err
	}
	var server tlsconfig.Authorizer
	if f.ServerID != "" {
		id, err := f.serverID()
		if err != nil {
			return nil, err
		}
		server = tlsconfig.AuthorizeID(id)
	}
	var option client.Option
	switch {
	case f.JWT && server != nil:
		option = client.WithServer(bundles, server)
	case f.JWT:
		option = client.WithRoots(roots)
	case server != nil:
		option = client.WithX509(svids, bundles, server)
	default:
		option = client.WithX509AndWebPKI(svids, roots)
	}
	return client.New(client.Config{BaseURL: f.Server}, append(more, option)...)
}

// audience returns the audience of JWT-SVIDs: the broker's issuer, which is its URL unless --audience is set.
func (f CallerFlags) audience() string { return cmp.Or(f.Audience, strings.TrimSuffix(f.Server, "/")) }

// roots returns the certificates of --ca-file, or nil for the system's. They do not verify a broker with a SPIFFE ID.
func (f CallerFlags) roots() (*x509.CertPool, error) {
	if f.CAFile == "" || f.ServerID != "" {
		return nil, nil //nolint:nilnil // the system's
	}
	roots, err := safehttp.ReadRoots(f.CAFile)
	if err != nil {
		return nil, fmt.Errorf("--ca-file: %w", err)
	}
	return roots, nil
}

func (f CallerFlags) serverID() (spiffeid.ID, error) {
	id, err := attest.ParseID(f.ServerID)
	if err != nil {
		return id, fmt.Errorf("--server-id: %w", err)
	}
	return id, nil
}

func (f CallerFlags) noSVID(err error) error {
	return fmt.Errorf("no SVID from the Workload API at %s: check that the agent runs, and that a registration entry selects this process: %w", f.WorkloadAPI, err)
}

// hint adds advice if the Web PKI does not verify the broker's certificate.
func (f CallerFlags) hint(err error) error {
	if _, untrusted := errors.AsType[*tls.CertificateVerificationError](err); f.ServerID != "" || !untrusted {
		return err
	}
	return fmt.Errorf("%w\nIf the broker serves with an SVID, set --server-id or BREVET_SERVER_ID", err)
}

// identity returns the SPIFFE ID as which these flags act. It is empty if the Workload API does not give one.
func (f CallerFlags) identity(ctx context.Context) (acting, instead string) {
	if checkSocket(f.WorkloadAPI) != nil {
		return "", ""
	}
	ctx, cancel := context.WithTimeout(ctx, registeredWithin)
	defer cancel()
	identity := client.NewIdentity(f.SVID)
	if f.firstSVID(ctx, identity) != nil {
		return "", ""
	}
	return identity.ID().String(), ""
}

// explain prints a problem that the server returned, for people or as JSON, and returns an error with its exit code. It
// returns any other error unchanged.
func explain(con *console, err error) error {
	if abandoned, ok := errors.AsType[*client.AbandonedError](err); ok {
		return sayAbandoned(con, abandoned)
	}
	problem, ok := errors.AsType[*client.Problem](err)
	if !ok {
		return err
	}
	explained := exitError{err: err, code: exitCode(err)}
	acted, _ := errors.AsType[actedError](err)
	if con.json {
		if err := con.encode(struct {
			openapi.Problem
			RetryAfter int    `json:"retry_after,omitempty"`
			ActedAs    string `json:"acted_as,omitempty"`
			Instead    string `json:"instead,omitempty"`
		}{problem.Problem, int(problem.RetryAfter.Seconds()), acted.acting, acted.instead}); err != nil {
			return err
		}
		return explained
	}
	fmt.Fprintln(con.err, safetext.Text(problem.Title))
	// The reason and the way out come first. Without a reason, the detail is the reason.
	detail := safetext.Text(problem.Detail)
	if problem.Explanation == "" {
		fmt.Fprintln(con.err, detail)
	}
	wouldPass := ""
	if problem.Narrowest.Scope != "" {
		wouldPass = commandLine(problem.Narrowest)
	}
	for _, line := range []struct{ label, text string }{
		{"field", problem.Field},
		{"why", problem.Explanation},
		{"would pass", wouldPass},
		{"acted as", acted.acting},
		{"instead", acted.instead},
		{"decided by", strings.Join(problem.Policies, ", ")},
		{"approvers", problem.Approvers},
		{"record", problem.ID},
		{"request", problem.RequestID},
	} {
		if line.text != "" {
			fmt.Fprintf(con.err, "  %-10s %s\n", line.label, safetext.Text(line.text))
		}
	}
	if problem.RetryAfter > 0 {
		fmt.Fprintf(con.err, "  %-10s in %s\n", "retry", spell(problem.RetryAfter))
	}
	if problem.Explanation != "" {
		fmt.Fprintln(con.err, detail)
	}
	return explained
}

// sayAbandoned says what becomes of a request for which this command no longer waits, and returns an error with its exit code.
func sayAbandoned(con *console, a *client.AbandonedError) error {
	id, explained := a.Pending.ID, exitError{err: a, code: exitCode(a.Err)}
	status, ended := openapi.StatusWithdrawn, "Interrupted"
	if !errors.Is(a, context.Canceled) {
		ended = "The wait for approval ended: " + a.Err.Error()
	}
	if a.Kept != nil {
		status, explained.code = openapi.StatusPending, exitPending
	}
	switch {
	case con.json:
		if err := con.encode(map[string]any{"id": id, "status": status}); err != nil {
			return err
		}
	case a.Kept == nil:
		fmt.Fprintf(con.err, "%s. Request %s is withdrawn.\n", safetext.Text(ended), safetext.Text(id))
	default:
		fmt.Fprintf(con.err, "%s. Request %s is not withdrawn, so people can still approve it: %s.\n", safetext.Text(ended), safetext.Text(id),
			safetext.Text(a.Kept.Error()))
		for _, line := range [][2]string{{"withdraw", "brevet withdraw "}, {"collect", "brevet request --id "}} {
			fmt.Fprintf(con.err, "  %-10s %s\n", line[0], safetext.Text(line[1]+quote(id)))
		}
	}
	return explained
}

// The exit codes of commands that call the broker, for scripts. 1 is any other failure, and 2 is an invalid command line.
// exitPending means that a request waits for approval, or that Vault has not confirmed a revocation.
const (
	exitDenied      = 3
	exitPending     = 4
	exitUnavailable = 5
)

func exitCode(err error) int {
	switch {
	case errors.Is(err, client.ErrDenied):
		return exitDenied
	case errors.Is(err, client.ErrUnavailable), errors.Is(err, client.ErrRateLimited), errors.Is(err, client.ErrVaultRefused):
		return exitUnavailable
	default:
		return 1
	}
}

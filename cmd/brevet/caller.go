package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/brevet-dev/brevet/attest"
	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/safetext"
	"github.com/brevet-dev/brevet/openapi"
	"github.com/spiffe/go-spiffe/v2/bundle/x509bundle"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/spiffetls/tlsconfig"
	"github.com/spiffe/go-spiffe/v2/svid/jwtsvid"
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
func (f CallerFlags) open(ctx context.Context) (*client.Client, func(), error) {
	if err := checkSocket(f.WorkloadAPI); err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, workloadTimeout)
	defer cancel()
	identity := client.NewIdentity(f.SVID)
	if err := f.firstSVID(ctx, identity); err != nil {
		return nil, nil, err
	}
	source, err := workloadapi.NewX509Source(ctx, workloadapi.WithClientOptions(insistent(f.WorkloadAPI)...), workloadapi.WithDefaultX509SVIDPicker(identity.Pick))
	if err != nil {
		return nil, nil, f.noSVID(err)
	}
	closers := []func(){func() { _ = source.Close() }}
	closeAll := func() {
		for _, c := range closers {
			c()
		}
	}
	var tokens *workloadapi.JWTSource
	if f.JWT {
		if tokens, err = workloadapi.NewJWTSource(ctx, workloadapi.WithClientOptions(insistent(f.WorkloadAPI)...)); err != nil {
			closeAll()
			return nil, nil, f.noSVID(err)
		}
		closers = append(closers, func() { _ = tokens.Close() })
	}
	c, err := f.client(source, tokens, identity.ID())
	if err != nil {
		closeAll()
		return nil, nil, err
	}
	closers = append(closers, c.Close)
	return c, closeAll, nil
}

// checkSocket returns an error if the Workload API's socket does not exist. go-spiffe would wait for it, but the user of a
// command wants to know at once.
func checkSocket(workloadAPI string) error {
	socket, ok := strings.CutPrefix(workloadAPI, "unix://")
	if !ok {
		return nil
	}
	if _, err := os.Stat(socket); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("no Workload API at %s: start the SPIFFE agent or brevet dev", workloadAPI)
	}
	return nil
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

// firstSVID fetches the SVIDs once, so that the user sees the agent's answer at once: that there is no entry for this
// workload, or that there are several SVIDs to choose from.
func (f CallerFlags) firstSVID(ctx context.Context, identity *client.Identity) error {
	for began := time.Now(); ; {
		svids, err := workloadapi.FetchX509SVIDs(ctx, workloadapi.WithAddr(f.WorkloadAPI))
		switch {
		case err == nil:
			identity.Pick(svids)
			if err := identity.Err(); err != nil {
				return withOption(err, "--svid or BREVET_SVID")
			}
			return nil
		case status.Code(err) != codes.PermissionDenied:
			return f.noSVID(err)
		case time.Since(began) > registeredWithin:
			return fmt.Errorf("the Workload API at %s returned %s: no registration entry selects this process: create one, or run this command as a registered workload",
				f.WorkloadAPI, safetext.Text(quote(status.Convert(err).Message())))
		}
		select {
		case <-ctx.Done():
			return f.noSVID(ctx.Err())
		case <-time.After(200 * time.Millisecond):
		}
	}
}

func (f CallerFlags) client(source *workloadapi.X509Source, tokens jwtsvid.Source, id spiffeid.ID) (*client.Client, error) {
	if !f.JWT {
		return f.clientAs(source, source)
	}
	options := []client.Option{client.WithJWT(tokens, f.audience()), client.WithSubject(id)}
	roots, err := f.roots()
	if err != nil {
		return nil, err
	}
	if roots != nil {
		options = append(options, client.WithRoots(roots))
	}
	if f.ServerID != "" {
		id, err := f.serverID()
		if err != nil {
			return nil, err
		}
		options = append(options, client.WithServer(source, tlsconfig.AuthorizeID(id)))
	}
	return client.New(client.Config{BaseURL: f.Server}, options...)
}

// clientAs returns a client that authenticates with the X.509-SVIDs of one source. With --server-id, it verifies the broker
// with the bundles of the other source.
func (f CallerFlags) clientAs(svids x509svid.Source, bundles x509bundle.Source) (*client.Client, error) {
	if f.ServerID == "" {
		roots, err := f.roots()
		if err != nil {
			return nil, err
		}
		return client.New(client.Config{BaseURL: f.Server}, client.WithX509AndWebPKI(svids, roots))
	}
	id, err := f.serverID()
	if err != nil {
		return nil, err
	}
	return client.New(client.Config{BaseURL: f.Server}, client.WithX509(svids, bundles, tlsconfig.AuthorizeID(id)))
}

// audience returns the audience of JWT-SVIDs: the broker's issuer, which is its URL unless --audience is set.
func (f CallerFlags) audience() string {
	if f.Audience != "" {
		return f.Audience
	}
	return strings.TrimSuffix(f.Server, "/")
}

// roots returns the certificates of --ca-file, or nil for the system's. With --server-id it returns nil, because Web PKI
// roots do not verify a broker that proves a SPIFFE ID.
func (f CallerFlags) roots() (*x509.CertPool, error) {
	if f.CAFile == "" || f.ServerID != "" {
		return nil, nil //nolint:nilnil // the system's
	}
	roots, err := readRoots(f.CAFile)
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
	var untrusted *tls.CertificateVerificationError
	if f.ServerID != "" || !errors.As(err, &untrusted) {
		return err
	}
	return fmt.Errorf("%w\nIf the broker serves with an SVID, set --server-id or BREVET_SERVER_ID", err)
}

// explain prints a problem that the server returned, for people or as JSON, and returns an error with its exit code. It
// returns any other error unchanged. task is the task of the request.
func explain(con *console, err error, task string) error {
	var problem *client.Problem
	if !errors.As(err, &problem) {
		return err
	}
	explained := exitError{err: err, code: exitCode(err)}
	if con.json {
		if err := con.encode(struct {
			openapi.Problem
			RetryAfter int `json:"retry_after,omitempty"`
		}{problem.Problem, int(problem.RetryAfter.Seconds())}); err != nil {
			return err
		}
		return explained
	}
	fmt.Fprintf(con.err, "%s\n%s\n", safetext.Text(problem.Title), safetext.Text(problem.Detail))
	for _, line := range []struct{ label, text string }{
		{"field", problem.Field},
		{"why", problem.Explanation},
		{"decided by", strings.Join(problem.Policies, ", ")},
		{"approvers", problem.Approvers},
		{"record", problem.ID},
		{"request", problem.RequestID},
	} {
		if line.text != "" {
			fmt.Fprintf(con.err, "  %-10s %s\n", line.label, safetext.Text(line.text))
		}
	}
	if ask := problem.Narrowest; ask.Scope != "" {
		fmt.Fprintf(con.err, "  %-10s %s\n", "would pass", safetext.Text(commandLine(ask, task)))
	}
	if problem.RetryAfter > 0 {
		fmt.Fprintf(con.err, "  %-10s in %s\n", "retry", spell(problem.RetryAfter))
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

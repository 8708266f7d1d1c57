package local

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/brevet-dev/brevet/internal/devstack"
	"github.com/brevet-dev/brevet/internal/quiet"
	"github.com/brevet-dev/brevet/internal/secret"
	"github.com/brevet-dev/brevet/resourceserver"
	"github.com/spiffe/go-spiffe/v2/spiffetls/tlsconfig"
	"github.com/spiffe/go-spiffe/v2/workloadapi"
)

// Audience is the audience of the tokens that the stack's API accepts.
const Audience = "https://github-gateway.acme.example"

// chooseAPI reuses the address of an earlier run if that is free, because the catalogue names it.
func (s *Stack) chooseAPI(ctx context.Context) error {
	earlier, err := os.ReadFile(s.Path("api.address"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if s.api, err = freeAddress(ctx, strings.TrimSpace(string(earlier))); err != nil {
		return err
	}
	return secret.WriteFile(s.Path("api.address"), s.api+"\n")
}

// ServeAPI gives developers something to call: it serves the issues of a repository to callers with a token of
// github.issues.read for it, as a gateway to GitHub would.
func (s *Stack) ServeAPI(ctx context.Context) error {
	source, err := workloadapi.NewX509Source(ctx, workloadapi.WithClientOptions(workloadapi.WithAddr(s.Socket("gateway"))))
	if err != nil {
		return err
	}
	s.closers = append(s.closers, source.Close)
	guard, err := resourceserver.New(resourceserver.Config{
		Issuer: s.URL, Audience: Audience, Origin: "https://" + localhost(s.api),
		HTTPClient: &http.Client{Timeout: 5 * time.Second, Transport: quiet.New(&http.Transport{
			TLSClientConfig: tlsconfig.TLSClientConfig(source, tlsconfig.AuthorizeID(ID("brevet"))),
		})},
	})
	if err != nil {
		return err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", s.api)
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle("GET /repos/{owner}/{name}/issues", guard.Handler(http.HandlerFunc(listIssues)))
	server := &http.Server{
		Handler: mux, ReadHeaderTimeout: 5 * time.Second, TLSConfig: tlsconfig.TLSServerConfig(source),
		ErrorLog: quiet.ServerLog(slog.New(slog.DiscardHandler)),
	}
	go func() { _ = server.ServeTLS(listener, "", "") }() // returns only after Close
	s.closers = append(s.closers, server.Close)
	return nil
}

// listIssues checks what the token was issued for, as every resource server must.
func listIssues(w http.ResponseWriter, r *http.Request) {
	repo := r.PathValue("owner") + "/" + r.PathValue("name")
	claims, ok := resourceserver.FromContext(r.Context())
	if !ok || len(claims.Details) != 1 || claims.Details[0].Type != "github.issues.read" || claims.Details[0].Params["repo"] != repo {
		http.Error(w, "the token does not permit this call", http.StatusForbidden)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode([]map[string]any{{"number": 1, "title": "The build is flaky", "repository": repo}}) // the client has gone
}

// The identity files of a workload, for programs without the Workload API. spiffe-helper uses the first three names too.
const (
	svidFile       = "svid.pem"
	svidKeyFile    = "svid_key.pem"
	svidBundleFile = "bundle.pem"
	jwtSVIDFile    = "jwt_svid.token"   // for the broker's issuer
	actorSVIDFile  = "actor_svid.token" // for the actor of a token exchange
)

// rewriteTokens is how often files with tokens are written. A token in a file stays valid for some minutes.
const rewriteTokens = time.Minute

func (s *Stack) identityFolder(workload string) string {
	return filepath.Join(s.Path("svid"), workload)
}

// WriteIdentities writes the SVIDs of each workload, and an ID token of each person, to files that only this user can read.
// It keeps them fresh until the stack is closed.
func (s *Stack) WriteIdentities(ctx context.Context, say func(string)) error {
	ctx, stop := context.WithCancel(ctx)
	var writers sync.WaitGroup
	s.closers = append(s.closers, func() error { stop(); writers.Wait(); return nil })
	// keep writes now, after each change, and at least each minute.
	keep := func(changed <-chan struct{}, write func() error) error {
		err := write()
		writers.Go(func() {
			tick := time.NewTicker(rewriteTokens)
			defer tick.Stop()
			for {
				select {
				case <-ctx.Done():
					return
				case <-changed:
				case <-tick.C:
				}
				if err := write(); err != nil && ctx.Err() == nil {
					say(fmt.Sprintf("identity files were not renewed: %v", err))
				}
			}
		})
		return err
	}
	for name := range Workloads {
		if name == "brevet" {
			continue // the broker uses the Workload API
		}
		if err := os.MkdirAll(s.identityFolder(name), 0o700); err != nil {
			return err
		}
		source, err := workloadapi.NewX509Source(ctx, workloadapi.WithClientOptions(workloadapi.WithAddr(s.Socket(name))))
		if err != nil {
			return err
		}
		writers.Go(func() { <-ctx.Done(); _ = source.Close() })
		if err := keep(source.Updated(), func() error { return s.writeIdentity(name, source) }); err != nil {
			return err
		}
	}
	return keep(nil, s.writePeople)
}

func (s *Stack) writeIdentity(workload string, source *workloadapi.X509Source) error {
	svid, err := source.GetX509SVID()
	if err != nil {
		return err
	}
	bundle, err := source.GetX509BundleForTrustDomain(svid.ID.TrustDomain())
	if err != nil {
		return err
	}
	chain, key, err := svid.Marshal()
	roots, noRoots := bundle.Marshal()
	token, noToken := s.Issuer.JWTSVID(svid.ID, s.URL)
	actor, noActor := s.Issuer.JWTSVID(svid.ID, s.URL+"/actor")
	if err := errors.Join(err, noRoots, noToken, noActor); err != nil {
		return err
	}
	for _, file := range []struct{ name, text string }{
		{svidBundleFile, string(roots)},
		{svidKeyFile, string(key)},
		{svidFile, string(chain)},
		{jwtSVIDFile, token},
		{actorSVIDFile, actor},
	} {
		if err := secret.WriteFile(filepath.Join(s.identityFolder(workload), file.name), file.text); err != nil {
			return err
		}
	}
	return nil
}

// writePeople writes an ID token of each person, to give to a sandbox that works for that person.
func (s *Stack) writePeople() error {
	for _, person := range people {
		token, err := s.People.IDTokenFor(delegation, person.Username)
		if err != nil {
			return err
		}
		if err := secret.WriteFile(filepath.Join(s.Path("people"), person.Username+".token"), token); err != nil {
			return err
		}
	}
	return nil
}

// environments is the file in which a running stack writes how to act as each of its workloads, for `brevet dev env`.
const environments = "env.json"

// Variables are environment variables in the order in which they are printed.
type Variables [][2]string

// Get returns the value of a variable, or an empty string.
func (v Variables) Get(name string) string {
	for _, pair := range v {
		if pair[0] == name {
			return pair[1]
		}
	}
	return ""
}

// Environment returns the variables that a client of this stack needs to act as one of its workloads.
func (s *Stack) Environment(workload string) Variables {
	host, port, _ := net.SplitHostPort(s.Postgres.Addr()) // Addr returns host:port
	return Variables{
		{"BREVET_SERVER", s.URL},
		{"BREVET_SERVER_ID", ID("brevet").String()},
		{"SPIFFE_ENDPOINT_SOCKET", s.Socket(workload)},
		// A shell for one of the workloads with a role acts as this workload, also while somebody is logged in.
		{"BREVET_AS_WORKLOAD", strconv.FormatBool(slices.Contains([]string{"admin", "auditor", "gateway"}, workload))},
		{"BREVET_OIDC_ISSUER", s.People.Issuer()},
		{"BREVET_OIDC_CLIENT_ID", loginClient},
		{"BREVET_DEV_STATE", s.Dir},
		{"BREVET_DEV_API", "https://" + localhost(s.api)},
		{"SVID_DIR", s.identityFolder(workload)},
		// The database for the logins of scopes such as reports.orders.read.
		{"PGHOST", host},
		{"PGPORT", port},
		{"PGDATABASE", devstack.TargetDatabase},
	}
}

// WriteEnvironments is called once the broker serves, so that programs that wait for the file can continue.
func (s *Stack) WriteEnvironments() error {
	all := map[string]Variables{}
	for workload := range Workloads {
		all[workload] = s.Environment(workload)
	}
	text, err := json.Marshal(all)
	if err != nil {
		return err
	}
	return secret.WriteFile(s.Path(environments), string(text)+"\n")
}

// RemoveEnvironments ignores errors, because `brevet dev env` also detects that no stack runs if the file stays.
func (s *Stack) RemoveEnvironments() { _ = os.Remove(s.Path(environments)) }

// ReadEnvironments returns the variables for each workload of the stack in a folder. The error is [fs.ErrNotExist] if no stack
// runs there, but a stack that was killed leaves the file behind. A shell evaluates the variables, and logins follow them, so the
// folder must be one that this user made: see [devstack.Home].
func ReadEnvironments(home devstack.Home, dir string) (map[string]Variables, error) {
	dir, err := home.Verify(dir)
	if err != nil {
		return nil, err
	}
	path := filepath.Join(dir, environments)
	text, err := secret.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var all map[string]Variables
	if err := json.Unmarshal([]byte(text), &all); err != nil {
		return nil, fmt.Errorf("reading %s: %w", path, err)
	}
	return all, nil
}

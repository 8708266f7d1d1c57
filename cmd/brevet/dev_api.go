package main

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/brevet-dev/brevet/resourceserver"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/spiffetls/tlsconfig"
	"github.com/spiffe/go-spiffe/v2/workloadapi"
)

// localAudience is the audience of the tokens that the dev stack's API accepts.
const localAudience = "https://github-gateway.acme.example"

// chooseAPI chooses the address of the API. It reuses the address of an earlier run if that is free, because the catalogue
// names it.
func (l *localStack) chooseAPI(ctx context.Context) error {
	note := l.path("api.address")
	earlier, err := os.ReadFile(note)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if l.api, err = freeAddress(ctx, strings.TrimSpace(string(earlier))); err != nil {
		return err
	}
	return replaceFile(note, l.api+"\n")
}

// apiHost returns the host and port of the API as clients and the catalogue name it. Its certificate is for this host.
func (l *localStack) apiHost() string {
	_, port, _ := net.SplitHostPort(l.api) // freeAddress returns host:port
	return "localhost:" + port
}

// serveAPI serves the issues of repositories, as a gateway to GitHub would, to callers with a token of github.issues.read
// for the repository. It gives developers something to call with the credentials that Brevet issues.
func (l *localStack) serveAPI(ctx context.Context, cfg Config) error {
	source, err := workloadapi.NewX509Source(ctx, workloadapi.WithClientOptions(insistent(l.socket("gateway"))...))
	if err != nil {
		return err
	}
	l.closers = append(l.closers, source.Close)
	broker := spiffeid.RequireFromString("spiffe://" + localDomain + localWorkloads["brevet"])
	guard, err := resourceserver.New(resourceserver.Config{
		Issuer: cfg.Issuer, Audience: localAudience, Origin: "https://" + l.apiHost(),
		HTTPClient: &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{
			TLSClientConfig: tlsconfig.TLSClientConfig(source, tlsconfig.AuthorizeID(broker)),
		}},
	})
	if err != nil {
		return err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", l.api)
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle("GET /repos/{owner}/{name}/issues", guard.Handler(http.HandlerFunc(listIssues)))
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second, TLSConfig: tlsconfig.TLSServerConfig(source)}
	go func() { _ = server.ServeTLS(listener, "", "") }() // returns only after Close
	l.closers = append(l.closers, server.Close)
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

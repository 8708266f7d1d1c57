// Package demo plays the main features of Brevet through on real servers, and checks each statement that it makes.
//
// It must never state what it has not observed, or print a credential.
package demo

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/devstack/local"
	"github.com/brevet-dev/brevet/openapi"
	"github.com/spiffe/go-spiffe/v2/spiffetls/tlsconfig"
	"github.com/spiffe/go-spiffe/v2/workloadapi"
)

// Demo is what the demo needs from the program that plays it.
type Demo struct {
	// Serve runs a broker with a configuration file until ctx ends. It calls ready when the broker serves.
	Serve func(ctx context.Context, configFile string, ready func()) error
	// Say prints a line for people, and the others write its parts: a headline, a duration, a request as a command.
	Say         func(line string)
	Bold        func(text string) string
	Spell       func(time.Duration) string
	CommandLine func(ask openapi.NarrowestAsk) string
	Now         func() time.Time
}

// Chapter is one part of the demo: a title and the observed facts.
type Chapter struct {
	Title string `json:"title"`
	Facts []Fact `json:"facts"`
}

// Fact is one observation.
type Fact struct {
	Label string `json:"label"`
	Text  string `json:"text"`
}

// story is a running demo. Each client has a separate identity.
type story struct {
	Demo
	stack                    *local.Stack
	research, auditor, admin *client.Client
	alice                    *client.Client // a person
	chapters                 []Chapter
}

// Play plays the demo and removes its stack afterwards. It returns the chapters, and a summary of each.
func (d Demo) Play(ctx context.Context) (chapters []Chapter, shown []string, err error) {
	dir, err := os.MkdirTemp("", "brevet-demo-")
	if err != nil {
		return nil, nil, fmt.Errorf("creating a folder for the demo: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	s := &story{Demo: d}
	s.Say("The demo runs real servers: PostgreSQL, a Vault core, and a SPIFFE Workload API.")
	began := s.Now()
	if s.stack, err = local.Start(ctx, local.Config{Dir: dir, Progress: func(line string) { s.Say("  " + line) }}); err != nil {
		return nil, nil, err
	}
	defer func() { _ = s.stack.Close() }()
	stop, err := s.serve(ctx)
	if err != nil {
		return nil, nil, err
	}
	defer stop()
	leave, err := s.connect(ctx)
	defer leave()
	if err != nil {
		return nil, nil, err
	}
	s.Say("  ready after " + s.Now().Sub(began).Round(100*time.Millisecond).String())
	for _, part := range []struct {
		title, shown string
		tell         func(context.Context) error
	}{
		{"A sandbox requests what its task needs", "allowed", s.allowed},
		{"It requests a longer lifetime than allowed", "clamped", s.clamped},
		{"It requests too much", "denied with the nearest permitted request", s.denied},
		{"It requests something that needs approval", "approved by a person", s.approved},
		{"A resource server verifies a token with only the public keys", "verified by JWKS alone", s.verified},
		{"It logs in to a database, and its task ends", "database login revoked with its task", s.login},
		{"An admin quarantines the sandbox", "quarantined", s.quarantined},
		{"Someone forges an SVID", "forged SVIDs refused", s.forged},
		{"Vault is sealed, then PostgreSQL stops", "no token released without Vault or PostgreSQL", s.faults},
		{"The auditor reads the record", "history listed", s.history},
		{"The auditor verifies the record independently", "record proven", s.proven},
		{"The stack stops", "stack stopped", func(ctx context.Context) error { leave(); stop(); return s.gone(ctx) }},
	} {
		s.chapters = append(s.chapters, Chapter{Title: part.title})
		s.Say("\n" + s.Bold(fmt.Sprintf("%d  %s", len(s.chapters), part.title)))
		if err := part.tell(ctx); err != nil {
			return nil, nil, fmt.Errorf("%s: %w", part.title, err)
		}
		shown = append(shown, part.shown)
	}
	return s.chapters, shown, nil
}

// fact adds an observation to the current chapter.
func (s *story) fact(label, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	now := &s.chapters[len(s.chapters)-1]
	now.Facts = append(now.Facts, Fact{label, text})
	s.Say(fmt.Sprintf("   %-10s %s", label, text))
}

// serve runs the broker as `brevet serve` does, with the stack's configuration file.
func (s *story) serve(ctx context.Context) (stop func(), err error) {
	ctx, cancel := context.WithCancel(ctx)
	ready, ended := make(chan struct{}), make(chan struct{})
	var failure error
	go func() {
		defer close(ended)
		failure = s.Serve(ctx, s.stack.ConfigFile, func() { close(ready) })
	}()
	stop = func() { cancel(); <-ended }
	select {
	case <-ready:
		return stop, nil
	case <-ended:
		cancel()
		return nil, fmt.Errorf("starting the broker: %w", failure)
	}
}

// connect connects each actor. leave closes the connections; it may be called twice.
func (s *story) connect(ctx context.Context) (leave func(), err error) {
	var closers []func()
	leave = func() {
		for _, f := range closers {
			f()
		}
		closers = nil
	}
	broker := tlsconfig.AuthorizeID(local.ID("brevet"))
	for name, role := range map[string]**client.Client{"research": &s.research, "auditor": &s.auditor, "admin": &s.admin} {
		source, err := workloadapi.NewX509Source(ctx, workloadapi.WithClientOptions(workloadapi.WithAddr(s.stack.Socket(name))))
		if err != nil {
			return leave, fmt.Errorf("connecting as %s: %w", name, err)
		}
		closers = append(closers, func() { _ = source.Close() })
		if *role, err = client.New(client.Config{BaseURL: s.stack.URL}, client.WithX509(source, source, broker)); err != nil {
			return leave, fmt.Errorf("connecting as %s: %w", name, err)
		}
		closers = append(closers, (*role).Close)
	}
	anyone, err := client.New(client.Config{BaseURL: s.stack.URL}, client.WithServer(s.stack.Issuer.Bundle(), broker))
	if err == nil {
		s.alice, err = anyone.AsPerson(s.stack.People.Person("alice"))
	}
	if err != nil {
		return leave, fmt.Errorf("connecting as alice: %w", err)
	}
	closers = append(closers, s.alice.Close)
	return leave, nil
}

// gone stops the stack and shows that no server still runs.
func (s *story) gone(ctx context.Context) error {
	addresses := []string{s.stack.Postgres.Addr(), strings.TrimPrefix(s.stack.Vault.Addr(), "http://")}
	if err := s.stack.Close(); err != nil {
		return err
	}
	for _, address := range addresses {
		conn, err := (&net.Dialer{Timeout: time.Second}).DialContext(context.WithoutCancel(ctx), "tcp", address)
		if err == nil {
			return errors.Join(fmt.Errorf("a server still responds on %s", address), conn.Close())
		}
	}
	s.fact("gone", "no server responds")
	return nil
}

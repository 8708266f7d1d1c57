package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/workloadapi"
)

// The identity files of a workload, for programs that do not use the Workload API. The first three have the names that
// spiffe-helper gives them.
const (
	svidFile       = "svid.pem"
	svidKeyFile    = "svid_key.pem"
	svidBundleFile = "bundle.pem"
	jwtSVIDFile    = "jwt_svid.token"   // for the broker's issuer
	actorSVIDFile  = "actor_svid.token" // for the actor of a token exchange
)

// rewriteTokens is how often files with tokens are written. A token in a file stays valid for some minutes.
const rewriteTokens = time.Minute

func (l *localStack) identityFolder(workload string) string {
	return filepath.Join(l.path("svid"), workload)
}

// writeIdentities writes the SVIDs of each workload, and an ID token of each person, to files that only this user can read.
// It keeps them fresh until the stack is closed.
func (l *localStack) writeIdentities(ctx context.Context, cfg Config, say func(string)) error {
	ctx, stop := context.WithCancel(ctx)
	var writers sync.WaitGroup
	l.closers = append(l.closers, func() error { stop(); writers.Wait(); return nil })
	keep := func(changed <-chan struct{}, write func() error) error {
		err := write()
		writers.Go(func() { keepWriting(ctx, changed, say, write) })
		return err
	}
	for name, path := range localWorkloads {
		if name == "brevet" {
			continue // the broker uses the Workload API
		}
		w := &identityWriter{stack: l, folder: l.identityFolder(name), issuer: cfg.Issuer}
		var err error
		if w.id, err = spiffeid.FromPath(l.issuer.TrustDomain(), path); err != nil {
			return err
		}
		if err := os.MkdirAll(w.folder, 0o700); err != nil {
			return err
		}
		if w.source, err = workloadapi.NewX509Source(ctx, workloadapi.WithClientOptions(insistent(l.socket(name))...)); err != nil {
			return err
		}
		writers.Go(func() { <-ctx.Done(); _ = w.source.Close() })
		if err := keep(w.source.Updated(), w.write); err != nil {
			return err
		}
	}
	return keep(nil, l.writePeople)
}

// keepWriting writes after each change, and at least each minute, until ctx ends.
func keepWriting(ctx context.Context, changed <-chan struct{}, say func(string), write func() error) {
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
}

// identityWriter writes the files of one workload.
type identityWriter struct {
	stack          *localStack
	source         *workloadapi.X509Source
	id             spiffeid.ID
	folder, issuer string
}

func (w *identityWriter) write() error {
	svid, err := w.source.GetX509SVID()
	if err != nil {
		return err
	}
	chain, key, err := svid.Marshal()
	if err != nil {
		return err
	}
	bundle, err := w.source.GetX509BundleForTrustDomain(w.id.TrustDomain())
	if err != nil {
		return err
	}
	roots, err := bundle.Marshal()
	if err != nil {
		return err
	}
	token, err := w.stack.issuer.JWTSVID(w.id, w.issuer)
	if err != nil {
		return err
	}
	actor, err := w.stack.issuer.JWTSVID(w.id, w.issuer+"/actor")
	if err != nil {
		return err
	}
	for _, file := range []struct{ name, text string }{
		{svidBundleFile, string(roots)},
		{svidKeyFile, string(key)},
		{svidFile, string(chain)},
		{jwtSVIDFile, token},
		{actorSVIDFile, actor},
	} {
		if err := replaceFile(filepath.Join(w.folder, file.name), file.text); err != nil {
			return err
		}
	}
	return nil
}

// writePeople writes an ID token of each person, to give to a sandbox that works for that person.
func (l *localStack) writePeople() error {
	for _, person := range localPeople {
		token, err := l.people.IDTokenFor(localDelegation, person.Username)
		if err != nil {
			return err
		}
		if err := replaceFile(filepath.Join(l.path("people"), person.Username+".token"), token); err != nil {
			return err
		}
	}
	return nil
}

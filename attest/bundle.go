package attest

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/spiffe/go-spiffe/v2/bundle/spiffebundle"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

// maxBundleBytes leaves room for some thousand keys.
const maxBundleBytes = 4 << 20

// parseBundle parses a document in the SPIFFE bundle format. An empty list of keys is a valid bundle: with it, a trust domain
// revokes all its keys (by the specification). If parseBundle rejected it, the revoked keys would stay in use. A list of keys
// without any usable one is an error: the document is probably not a bundle.
func parseBundle(td spiffeid.TrustDomain, doc []byte) (*spiffebundle.Bundle, error) {
	// encoding/json, which go-spiffe uses, takes the last of two members with the same name. This parser rejects them.
	var strict struct {
		Keys []jsontext.Value `json:"keys"`
	}
	if err := json.Unmarshal(doc, &strict); err != nil {
		return nil, fmt.Errorf("parsing bundle of %s: %w", td, err)
	}
	bundle, err := spiffebundle.Parse(td, doc)
	if err != nil {
		return nil, fmt.Errorf("parsing bundle of %s: %w", td, err)
	}
	if len(strict.Keys) > 0 && len(bundle.X509Authorities()) == 0 && len(bundle.JWTAuthorities()) == 0 {
		return nil, fmt.Errorf("parsing bundle of %s: none of its keys is for an X.509-SVID or a JWT-SVID", td)
	}
	return bundle, nil
}

func readCapped(r io.Reader) ([]byte, error) {
	doc, err := io.ReadAll(io.LimitReader(r, maxBundleBytes+1))
	if err != nil {
		return nil, err
	}
	if len(doc) > maxBundleBytes {
		return nil, fmt.Errorf("larger than %d bytes", maxBundleBytes)
	}
	return doc, nil
}

func readBundleFile(td spiffeid.TrustDomain, path string) (*spiffebundle.Bundle, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("reading bundle: %w", err)
	}
	doc, err := readCapped(f)
	if err := errors.Join(err, f.Close()); err != nil {
		return nil, fmt.Errorf("reading bundle %s: %w", path, err)
	}
	return parseBundle(td, doc)
}

var errNotFetched = errors.New("not fetched yet")

// held is the last good bundle of one trust domain and the state of its source. Sources write it, requests read it. A stored
// bundle is never modified, only replaced.
type held struct {
	domain spiffeid.TrustDomain
	name   string
	log    *slog.Logger
	now    func() time.Time

	mu      sync.Mutex
	current *spiffebundle.Bundle
	fetched time.Time
	err     error     // the current error of the source
	since   time.Time // when the source began to fail
}

func newHeld(td spiffeid.TrustDomain, name string, log *slog.Logger, now func() time.Time) *held {
	log = log.With("trust_domain", td.Name(), "source", name)
	return &held{domain: td, name: name, log: log, now: now, err: errNotFetched, since: now()}
}

// set replaces the bundle.
func (h *held) set(b *spiffebundle.Bundle) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.err != nil {
		h.log.Info("bundle source works")
	}
	h.current, h.fetched, h.err = b, h.now(), nil
}

// fail records an error and keeps the bundle for as long as MaxStale allows.
func (h *held) fail(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.failLocked(err)
}

// withdraw drops the bundle, because its source no longer has one.
func (h *held) withdraw(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.current = nil
	h.failLocked(err)
}

// failLocked logs only the first failure, because some sources retry each second.
func (h *held) failLocked(err error) {
	if h.err == nil {
		h.since = h.now()
	}
	if h.err == nil || errors.Is(h.err, errNotFetched) {
		h.log.Warn("bundle source fails", "error", err)
	}
	h.err = err
}

func (h *held) bundle() (*spiffebundle.Bundle, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.bundleLocked()
}

func (h *held) bundleLocked() (*spiffebundle.Bundle, error) {
	if h.current == nil {
		return nil, fmt.Errorf("no bundle for %s: %w", h.domain, h.err)
	}
	if h.err != nil && h.now().Sub(h.since) > MaxStale {
		return nil, fmt.Errorf("bundle for %s is stale: %w", h.domain, h.err)
	}
	return h.current, nil
}

// failing returns how long the source has been failing, or 0 if it works.
func (h *held) failing() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.err == nil {
		return 0
	}
	return h.now().Sub(h.since)
}

func (h *held) status() BundleStatus {
	h.mu.Lock()
	defer h.mu.Unlock()
	_, err := h.bundleLocked()
	st := BundleStatus{TrustDomain: h.domain, Source: h.name, Available: err == nil, Fetched: h.fetched}
	if h.current != nil {
		st.Sequence, _ = h.current.SequenceNumber()
		st.X509Authorities, st.JWTAuthorities = len(h.current.X509Authorities()), len(h.current.JWTAuthorities())
		for _, authority := range h.current.X509Authorities() {
			if authority.NotAfter.After(st.Expires) {
				st.Expires = authority.NotAfter
			}
		}
	}
	if h.err != nil {
		st.Err, st.Since = h.err.Error(), h.since
		if h.current != nil {
			st.Until = h.since.Add(MaxStale)
		}
	}
	return st
}

// filePoll is the shortest interval between two checks of a file. A changed file may stay unnoticed for that long.
const filePoll = time.Second

// file is a source that reads a bundle from a file. Each use of the bundle first checks the file, so the source needs neither a
// goroutine nor a Close.
//
// If the source cannot read or parse a changed file, it keeps the last good bundle for up to MaxStale, and its status shows the
// error. The file is probably half written, and a typo should not lock out every workload. If the file is removed, the source
// drops the bundle at once: in this way an operator ends trust in a domain.
type file struct {
	*held
	path string

	mu      sync.Mutex
	checked time.Time
	seen    os.FileInfo // of the last file read; nil forces a read
}

func (f *file) bundle() (*spiffebundle.Bundle, error) {
	f.poll()
	return f.held.bundle()
}

func (f *file) status() BundleStatus {
	f.poll()
	return f.held.status()
}

// poll reads the file if it was last checked more than a second ago and differs from the last one read.
func (f *file) poll() {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.now()
	if age := now.Sub(f.checked); age >= 0 && age < filePoll {
		return
	}
	f.checked = now
	info, err := os.Stat(f.path)
	if err != nil {
		f.seen = nil
		if errors.Is(err, fs.ErrNotExist) {
			f.withdraw(err)
			return
		}
		f.fail(err)
		return
	}
	if f.seen != nil && os.SameFile(f.seen, info) && f.seen.Size() == info.Size() && f.seen.ModTime().Equal(info.ModTime()) {
		return
	}
	// Set seen before reading: if the file changes during the read, the next poll sees a difference.
	f.seen = info
	if !info.Mode().IsRegular() {
		f.fail(fmt.Errorf("%s is not a regular file", f.path))
		return
	}
	bundle, err := readBundleFile(f.domain, f.path)
	if err != nil {
		f.fail(err)
		return
	}
	f.set(bundle)
}

package attest

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"time"

	"github.com/spiffe/go-spiffe/v2/bundle/spiffebundle"
)

// filePoll is the shortest interval between two checks of a file, and so the delay until a new file is used.
const filePoll = time.Second

// file is a bundle in a file. It is checked when it is used, so there is no goroutine and nothing to stop.
//
// If a new file cannot be read or parsed, the last good bundle stays in use, up to MaxStale, and the status shows the error: the
// file is most likely half written, and a typo should not lock every workload out. If the file is removed, the bundle is
// withdrawn at once: that is how an operator ends trust in a domain.
type file struct {
	*held
	path string

	mu      sync.Mutex
	checked time.Time
	seen    os.FileInfo // of the last file read; nil forces a read
}

// newFile reads the file once. An error at startup is a mistake in the configuration.
func newFile(path string, h *held) (*file, error) {
	f := &file{held: h, path: path}
	f.poll()
	if _, err := h.bundle(); err != nil {
		return nil, fmt.Errorf("attest: %w", err)
	}
	return f, nil
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
	if f.unchanged(info) {
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

func (f *file) unchanged(info os.FileInfo) bool {
	return f.seen != nil && os.SameFile(f.seen, info) && f.seen.Size() == info.Size() &&
		f.seen.ModTime().Equal(info.ModTime())
}

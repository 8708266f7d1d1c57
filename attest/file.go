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

// filePoll is how often a file is looked at, and so how long a new one takes to count.
const filePoll = time.Second

// file is a bundle in a file. It is looked at when it is used, so there is no goroutine and nothing to stop.
//
// A new file that cannot be read or parsed leaves the last good bundle in use, up to MaxStale, and shows in the
// status: it is most likely half written, and a typo should not lock everybody out. A file that was removed
// withdraws the bundle at once: that is how an operator says that a domain is not trusted any more.
type file struct {
	*held
	path string

	mu      sync.Mutex
	checked time.Time
	seen    os.FileInfo // of what was last read, nil to read again
}

// newFile reads the file once. At the start, an error is a mistake in the configuration.
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

// poll reads the file if it was not looked at in the last second and is not the one that was last read.
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
	// Taken before reading: if the file changes meanwhile, the next poll sees a difference.
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

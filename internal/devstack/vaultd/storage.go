package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/vault/sdk/physical"
	"github.com/hashicorp/vault/sdk/physical/file"
)

// storage is Vault's file storage, except that it writes each file in a separate folder and then moves it into place.
// Vault's own storage writes a temporary file beside the other entries. If Vault is killed during that write, it finds the
// leftover file among the leases at its next start, and shuts down because that file is not a lease.
//
// A deleted file is kept and reused for a later write: on some file systems, creating files is slow after many were
// deleted, which happens when Vault revokes many leases. Writes survive a killed Vault, but not a power failure.
type storage struct {
	*file.FileBackend
	folder, unfinished string

	spares []string // files in unfinished that Put may reuse; guarded by the lock
	kept   int      // number of files that have ever become spares
}

// At most maxSpares files are kept for reuse, and none larger than maxSpare bytes.
const (
	maxSpares = 1 << 13
	maxSpare  = 16 << 10
)

func newStorage(config map[string]string, log hclog.Logger) (physical.Backend, error) {
	made, err := file.NewFileBackend(config, log)
	if err != nil {
		return nil, err
	}
	backend, ok := made.(*file.FileBackend)
	if !ok {
		return nil, fmt.Errorf("the file storage is a %T", made)
	}
	s := &storage{FileBackend: backend, folder: config["path"], unfinished: filepath.Clean(config["path"]) + ".unfinished"}
	if err := os.RemoveAll(s.unfinished); err != nil {
		return nil, err
	}
	return s, os.MkdirAll(s.unfinished, 0o700)
}

// Put writes an entry in the form that the file storage reads.
func (s *storage) Put(ctx context.Context, entry *physical.Entry) error {
	if strings.Contains(entry.Key, "..") {
		return errors.New("a key must not lead upwards")
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	text, err := json.Marshal(struct{ Value []byte }{entry.Value})
	if err != nil {
		return err
	}
	s.Lock()
	defer s.Unlock()
	f, err := s.blank()
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err := errors.Join(err, f.Truncate(int64(len(text))), f.Close()); err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	target := s.path(entry.Key)
	err = os.MkdirAll(filepath.Dir(target), 0o700)
	if err == nil {
		err = os.Rename(f.Name(), target)
	}
	if err != nil {
		err = errors.Join(err, os.Remove(f.Name()))
	}
	return err
}

// Delete removes an entry. It keeps the entry's file for reuse unless the file is large.
func (s *storage) Delete(ctx context.Context, key string) error {
	s.Lock()
	defer s.Unlock()
	if !strings.Contains(key, "..") && ctx.Err() == nil && len(s.spares) < maxSpares {
		file := s.path(key)
		spare := filepath.Join(s.unfinished, "spare-"+strconv.Itoa(s.kept))
		info, err := os.Lstat(file)
		if err == nil && info.Mode().IsRegular() && info.Size() <= maxSpare && os.Rename(file, spare) == nil {
			s.spares = append(s.spares, spare)
			s.kept++
		}
	}
	return s.DeleteInternal(ctx, key)
}

// blank opens a file that holds no entry and that only its owner can access. It does not truncate a spare file: file
// systems flush a file to disk at once if it was truncated and then written again.
func (s *storage) blank() (*os.File, error) {
	if last := len(s.spares) - 1; last >= 0 {
		name := s.spares[last]
		s.spares = s.spares[:last]
		if f, err := os.OpenFile(name, os.O_WRONLY, 0); err == nil {
			return f, nil
		}
	}
	return os.CreateTemp(s.unfinished, "entry-")
}

// path returns the file that the file storage reads an entry from.
func (s *storage) path(key string) string {
	path := filepath.Join(s.folder, key)
	return filepath.Join(filepath.Dir(path), "_"+filepath.Base(path))
}

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

// storage is Vault's file storage, except that what is being written lies in another folder until it is whole. Vault's own
// writes it beside its neighbours: killed while it does, it finds one of them more when it starts again, which is no
// lease, and shuts down.
//
// A file that is deleted becomes the next one that is written: file systems take long to make one where many have just been
// deleted, as a Vault does that ends what it gave. What is written survives a Vault that is killed, not a machine that loses its power.
type storage struct {
	*file.FileBackend
	folder, unfinished string

	spares []string // in unfinished; whoever has the lock may take one
	kept   int      // how many have been spares
}

// So many files are kept to be written again, of so many bytes each.
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

// Delete ends an entry, whose file is written again, unless it is large.
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

// blank is a file that no entry has, for its owner alone. It is not emptied: file systems write out at once what was emptied and written
// anew.
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

// path is the file that the file storage reads an entry from.
func (s *storage) path(key string) string {
	path := filepath.Join(s.folder, key)
	return filepath.Join(filepath.Dir(path), "_"+filepath.Base(path))
}

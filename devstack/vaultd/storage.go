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
// deleted, as a Vault does that ends what it gave.
type storage struct {
	*file.FileBackend
	folder, unfinished string

	spares []string // in unfinished; whoever has the lock may take one
	kept   int      // how many have been spares
}

// maxSpares is as many files as are kept to be written again.
const maxSpares = 1 << 13

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
	if err := os.MkdirAll(filepath.Dir(target), 0o700); err != nil {
		return err
	}
	return os.Rename(f.Name(), target)
}

// Delete ends an entry, whose file is written again.
func (s *storage) Delete(ctx context.Context, key string) error {
	s.Lock()
	defer s.Unlock()
	if !strings.Contains(key, "..") && ctx.Err() == nil && len(s.spares) < maxSpares {
		s.kept++
		spare := filepath.Join(s.unfinished, "spare-"+strconv.Itoa(s.kept))
		if os.Rename(s.path(key), spare) == nil { // else it is not there, or gets deleted
			s.spares = append(s.spares, spare)
		}
	}
	return s.DeleteInternal(ctx, key)
}

// blank is a file that no entry has, for its owner alone. It is not emptied: file systems write out at once what was emptied and written
// anew.
func (s *storage) blank() (*os.File, error) {
	last := len(s.spares) - 1
	if last < 0 {
		return os.CreateTemp(s.unfinished, "entry-")
	}
	name := s.spares[last]
	s.spares = s.spares[:last]
	return os.OpenFile(name, os.O_WRONLY, 0)
}

func (s *storage) path(key string) string {
	return filepath.Join(s.folder, filepath.Dir(key), "_"+filepath.Base(key))
}

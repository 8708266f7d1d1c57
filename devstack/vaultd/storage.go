package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/vault/sdk/physical"
	"github.com/hashicorp/vault/sdk/physical/file"
)

// storage is Vault's file storage, except that what is being written lies in another folder until it is whole. Vault's own
// writes it beside its neighbours: killed while it does, it finds one of them more when it starts again, which is no
// lease, and shuts down.
type storage struct {
	*file.FileBackend
	folder, unfinished string
}

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
	f, err := os.CreateTemp(s.unfinished, "entry-") // for its owner alone
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err := errors.Join(err, f.Close()); err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	target := filepath.Join(s.folder, filepath.Dir(entry.Key), "_"+filepath.Base(entry.Key))
	if err := os.MkdirAll(filepath.Dir(target), 0o700); err != nil {
		return err
	}
	return os.Rename(f.Name(), target)
}

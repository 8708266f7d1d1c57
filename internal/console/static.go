package console

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"io/fs"
	"mime"
	"net/http"
	"path"
	"strings"

	"github.com/go-chi/chi/v5"
)

//go:embed static
var files embed.FS

// asset is one file, plain and compressed with gzip.
type asset struct {
	hash, kind    string
	plain, packed []byte
}

// static serves the scripts and styles. The address of each contains its digest, so that browsers can cache it forever.
type static struct{ assets map[string]asset }

func newStatic() (*static, error) {
	s := &static{assets: map[string]asset{}}
	err := fs.WalkDir(files, "static", func(name string, entry fs.DirEntry, err error) error {
		if kind := mime.TypeByExtension(path.Ext(name)); err == nil && !entry.IsDir() && kind != "" {
			return s.add(name, kind)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("console: packing scripts and styles: %w", err)
	}
	return s, nil
}

func (s *static) add(name, kind string) error {
	plain, err := files.ReadFile(name)
	if err != nil {
		return err
	}
	var packed bytes.Buffer
	w, err := gzip.NewWriterLevel(&packed, gzip.BestCompression)
	if err != nil {
		return err
	}
	if _, err := w.Write(plain); err != nil {
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	sum := sha256.Sum256(plain)
	s.assets[path.Base(name)] = asset{hex.EncodeToString(sum[:8]), kind, plain, packed.Bytes()}
	return nil
}

// address returns the path of a file.
func (s *static) address(name string) (string, error) {
	a, ok := s.assets[name]
	if !ok {
		return "", fmt.Errorf("there is no file %q", name)
	}
	return "/static/" + a.hash + "/" + name, nil
}

func (s *static) serve(w http.ResponseWriter, r *http.Request) {
	a, ok := s.assets[chi.URLParam(r, "name")]
	if !ok || a.hash != chi.URLParam(r, "hash") {
		http.NotFound(w, r)
		return
	}
	h := w.Header()
	h.Set("Content-Type", a.kind)
	h.Set("Cache-Control", "public, max-age=31536000, immutable")
	h.Set("Vary", "Accept-Encoding")
	body := a.plain
	if strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		h.Set("Content-Encoding", "gzip")
		body = a.packed
	}
	_, _ = w.Write(body) // the client may have disconnected
}

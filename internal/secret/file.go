package secret

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// MaxFile is the size of the largest secret in bytes.
const MaxFile = 64 << 10

// ReadFile returns the content of a file without the line end that editors add.
func ReadFile(path string) (string, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("reading a secret: %w", err)
	}
	if len(data) > MaxFile {
		return "", fmt.Errorf("%s is larger than 64 KiB, so it is not a secret", path)
	}
	text := strings.TrimRight(string(data), "\r\n")
	if text == "" {
		return "", errors.New(path + " is empty")
	}
	return text, nil
}

// WriteFile writes a file that only its owner may read. A concurrent reader sees either the whole old text or the whole new
// text. If path was a link or a file that others may read, the new file takes its place.
func WriteFile(path, text string) error { return writeFile(path, text, 0o600) }

// WritePublicFile is WriteFile for a file that every user may read. It follows no link either.
func WritePublicFile(path, text string) error { return writeFile(path, text, 0o644) }

func writeFile(path, text string, mode os.FileMode) error {
	fresh, err := os.CreateTemp(filepath.Dir(path), ".new-*") // mode 0600
	if err != nil {
		return err
	}
	_, err = fresh.WriteString(text)
	if err = errors.Join(err, fresh.Chmod(mode), fresh.Close()); err == nil {
		err = os.Rename(fresh.Name(), path)
	}
	if err != nil {
		_ = os.Remove(fresh.Name())
	}
	return err
}

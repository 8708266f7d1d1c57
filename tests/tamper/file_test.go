package tamper_test

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"testing"

	"github.com/brevet-dev/brevet/internal/audit"
	"golang.org/x/mod/sumdb/note"
)

// TestSnapshotFile verifies from a file what was verified from the database, and names the damage of damaged files.
func TestSnapshotFile(t *testing.T) {
	w := newWorld(t)
	all := w.items()
	var file bytes.Buffer
	if err := audit.WriteSnapshot(&file, each(all), nil); err != nil {
		t.Fatal(err)
	}
	cfg := audit.Config{Keys: note.VerifierList(w.log.verifier), Trusted: kept(w)}
	report, err := audit.Verify(t.Context(), audit.ReadSnapshot(bytes.NewReader(file.Bytes())), cfg)
	if err != nil || report.Entries != worldSize || !report.Whole() {
		t.Errorf("got %d entries, %s and %v", report.Entries, told(report.Findings), err)
	}
	for name, tc := range map[string]struct {
		file []byte
		want error
	}{
		"nothing":          {nil, audit.ErrCutOff},
		"no gzip":          {[]byte("{\"snapshot\":{}}\n"), audit.ErrSnapshot},
		"half":             {file.Bytes()[:file.Len()/2], audit.ErrCutOff},
		"all but one byte": {file.Bytes()[:file.Len()-1], audit.ErrCutOff},
		"another":          {compressed(t, []byte("{\"head\":{\"size\":0}}\n")), audit.ErrSnapshot},
		"no text":          {compressed(t, []byte("hello\n")), audit.ErrSnapshot},
		"lines left out":   {compressed(t, without(t, file.Bytes(), 500)), audit.ErrSnapshot},
		"no end":           {compressed(t, without(t, file.Bytes(), -1)), audit.ErrCutOff},
		"a flipped bit":    {flipped(file.Bytes()), nil},
	} {
		_, err := audit.Verify(t.Context(), audit.ReadSnapshot(bytes.NewReader(tc.file)), cfg)
		if err == nil || tc.want != nil && !errors.Is(err, tc.want) {
			t.Errorf("%s: got %v, want %v", name, err, tc.want)
		}
	}
	// An entry that is left out of both the lines and the count is found through what other lines say about it.
	for n, item := range all {
		entry, ok := item.(audit.Entry)
		if !ok || entry.Index != 400 {
			continue
		}
		file.Reset()
		if err := audit.WriteSnapshot(&file, each(append(all[:n:n], all[n+1:]...)), nil); err != nil {
			t.Fatal(err)
		}
		report, err := audit.Verify(t.Context(), audit.ReadSnapshot(&file), cfg)
		if err != nil {
			t.Fatal(err)
		}
		if problem := first(audit.EntryMissing, 400)(w, report); problem != "" {
			t.Error(problem)
		}
	}
}

func each(all []audit.Item) audit.Items {
	return func(yield func(audit.Item, error) bool) {
		for _, item := range all {
			if !yield(item, nil) {
				return
			}
		}
	}
}

func compressed(t *testing.T, text []byte) []byte {
	t.Helper()
	var file bytes.Buffer
	w := gzip.NewWriter(&file)
	_, err := w.Write(text)
	if err := errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	return file.Bytes()
}

// without returns the text of a snapshot without one line; -1 stands for the last one.
func without(t *testing.T, file []byte, line int) []byte {
	t.Helper()
	r, err := gzip.NewReader(bytes.NewReader(file))
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	lines := bytes.SplitAfter(text, []byte("\n"))
	lines = lines[:len(lines)-1] // nothing follows the last newline
	if line < 0 {
		line += len(lines)
	}
	return bytes.Join(append(lines[:line:line], lines[line+1:]...), nil)
}

// flipped flips a bit in the middle.
func flipped(file []byte) []byte {
	changed := bytes.Clone(file)
	changed[len(changed)/2] ^= 4
	return changed
}

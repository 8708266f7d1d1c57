package audit_test

import (
	"crypto/rand"
	"errors"
	"strings"
	"testing"

	"github.com/brevet-dev/brevet/internal/audit"
	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
)

const origin = "log.test/ledger"

var root = tlog.RecordHash([]byte("root"))

func TestCheckpointEncodingIsUnique(t *testing.T) {
	c := audit.Checkpoint{Origin: origin, Tree: tlog.Tree{N: 12, Hash: root}}
	if got, err := audit.ParseCheckpoint(c.String()); err != nil || got != c {
		t.Errorf("got %v, %v; want %v", got, err, c)
	}
	hash := root.String()
	for _, text := range []string{
		"", "\n", origin + "\n12\n" + hash, origin + "\n12\n" + hash + "\n\n", origin + "\n12\n" + hash + "\nmore\n",
		"\n12\n" + hash + "\n", origin + "\n012\n" + hash + "\n", origin + "\n+12\n" + hash + "\n", origin + "\n-1\n" + hash + "\n",
		origin + "\n\n" + hash + "\n", origin + "\n12\n\n", origin + "\n12\n" + hash[:43] + "\n", origin + "\n12\n" + hash + "=\n",
		origin + "\r\n12\n" + hash + "\n\n", origin + "\n99999999999999999999\n" + hash + "\n", origin + "\n12\n" + strings.Repeat("A", 44) + "\n",
	} {
		if got, err := audit.ParseCheckpoint(text); !errors.Is(err, audit.ErrCheckpoint) {
			t.Errorf("%q: got %v, %v; want %v", text, got, err, audit.ErrCheckpoint)
		}
	}
}

func FuzzParseCheckpoint(f *testing.F) {
	f.Add(audit.Checkpoint{Origin: origin, Tree: tlog.Tree{N: 12, Hash: root}}.String())
	f.Fuzz(func(t *testing.T, text string) {
		c, err := audit.ParseCheckpoint(text)
		if err == nil && c.String() != text {
			t.Errorf("%q reads as %q", text, c)
		}
	})
}

type logKey struct {
	signer   note.Signer
	verifier note.Verifier
}

func newKey(t *testing.T, name string) logKey {
	t.Helper()
	private, public, err := note.GenerateKey(rand.Reader, name)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := note.NewSigner(private)
	if err != nil {
		t.Fatal(err)
	}
	verifier, err := note.NewVerifier(public)
	if err != nil {
		t.Fatal(err)
	}
	return logKey{signer, verifier}
}

func signed(t *testing.T, text string, keys ...logKey) []byte {
	t.Helper()
	var signers []note.Signer
	for _, k := range keys {
		signers = append(signers, k.signer)
	}
	out, err := note.Sign(&note.Note{Text: text}, signers...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestOnlyTheLogSignsItsCheckpoints(t *testing.T) {
	ours, theirs, witness := newKey(t, origin), newKey(t, origin), newKey(t, "witness.test")
	c := audit.Checkpoint{Origin: origin, Tree: tlog.Tree{N: 12, Hash: root}}
	foreign := audit.Checkpoint{Origin: "other.test/ledger", Tree: c.Tree}
	good := signed(t, c.String(), ours, witness)
	for name, tc := range map[string]struct {
		note []byte
		want error
	}{
		"ours, cosigned":     {good, nil},
		"another key":        {signed(t, c.String(), theirs), audit.ErrUnsigned},
		"the witness alone":  {signed(t, c.String(), witness), audit.ErrUnsigned},
		"another log":        {signed(t, foreign.String(), ours), audit.ErrUnsigned},
		"changed":            {[]byte(strings.Replace(string(good), "\n12\n", "\n13\n", 1)), audit.ErrUnsigned},
		"no signature":       {[]byte(c.String()), audit.ErrCheckpoint},
		"something else":     {signed(t, "hello\n", ours), audit.ErrCheckpoint},
		"nothing":            {nil, audit.ErrCheckpoint},
		"a thousand at once": {signed(t, c.String(), many(theirs, 101)...), audit.ErrCheckpoint},
	} {
		got, err := audit.OpenCheckpoint(tc.note, origin, note.VerifierList(ours.verifier))
		if !errors.Is(err, tc.want) || err == nil && got != c {
			t.Errorf("%s: got %v, %v; want %v", name, got, err, tc.want)
		}
	}
}

func many(k logKey, n int) []logKey {
	all := make([]logKey, n)
	for i := range all {
		all[i] = k
	}
	return all
}

// A receipt proves its own entries and nothing else.
func TestReceipts(t *testing.T) {
	key := newKey(t, origin)
	keys := note.VerifierList(key.verifier)
	bodies := []string{`{"id":"a"}`, `{"id":"b"}`, `{"id":"c"}`, `{"id":"b","n":2}`, `{"id":"d"}`}
	var stored []tlog.Hash
	reader := tlog.HashReaderFunc(func(indexes []int64) ([]tlog.Hash, error) {
		found := make([]tlog.Hash, len(indexes))
		for i, index := range indexes {
			found[i] = stored[index]
		}
		return found, nil
	})
	for n, body := range bodies {
		made, err := tlog.StoredHashes(int64(n), []byte(body), reader)
		if err != nil {
			t.Fatal(err)
		}
		stored = append(stored, made...)
	}
	top, err := tlog.TreeHash(5, reader)
	if err != nil {
		t.Fatal(err)
	}
	c := audit.Checkpoint{Origin: origin, Tree: tlog.Tree{N: 5, Hash: top}}
	entry := func(index int64) audit.ReceiptEntry {
		proof, err := tlog.ProveRecord(5, index, reader)
		if err != nil {
			t.Fatal(err)
		}
		return audit.ReceiptEntry{Index: index, Body: bodies[index], Proof: proof}
	}
	whole := func() audit.Receipt {
		return audit.Receipt{
			Version: 1, Issuance: "b", Approves: "a", Checkpoint: string(signed(t, c.String(), key)),
			Entries: []audit.ReceiptEntry{entry(0), entry(1), entry(3)},
		}
	}
	if got, err := whole().Verify(keys); err != nil || got != c {
		t.Errorf("got %v, %v; want %v", got, err, c)
	}
	for name, tc := range map[string]struct {
		change func(*audit.Receipt)
		want   error
	}{
		"a word":            {func(r *audit.Receipt) { r.Entries[2].Body = `{"id":"b","n":3}` }, audit.ErrReceipt},
		"another's entry":   {func(r *audit.Receipt) { r.Entries[1] = entry(2) }, audit.ErrReceipt},
		"another index":     {func(r *audit.Receipt) { r.Entries[2].Index = 4 }, audit.ErrReceipt},
		"beyond the log":    {func(r *audit.Receipt) { r.Entries[2].Index = 5 }, audit.ErrReceipt},
		"before the log":    {func(r *audit.Receipt) { r.Entries[0].Index = -1 }, audit.ErrReceipt},
		"twice":             {func(r *audit.Receipt) { r.Entries[1] = r.Entries[0] }, audit.ErrReceipt},
		"no proof":          {func(r *audit.Receipt) { r.Entries[0].Proof = nil }, audit.ErrReceipt},
		"no entries":        {func(r *audit.Receipt) { r.Entries = nil }, audit.ErrReceipt},
		"no JSON":           {func(r *audit.Receipt) { r.Entries[0].Body = `{` }, audit.ErrReceipt},
		"another version":   {func(r *audit.Receipt) { r.Version = 2 }, audit.ErrReceipt},
		"another issuance":  {func(r *audit.Receipt) { r.Issuance = "d" }, audit.ErrReceipt},
		"no checkpoint":     {func(r *audit.Receipt) { r.Checkpoint = "" }, audit.ErrCheckpoint},
		"unsigned":          {func(r *audit.Receipt) { r.Checkpoint = string(signed(t, c.String(), newKey(t, origin))) }, audit.ErrUnsigned},
		"smaller than that": {func(r *audit.Receipt) { c := c; c.N = 4; r.Checkpoint = string(signed(t, c.String(), key)) }, audit.ErrReceipt},
	} {
		r := whole()
		tc.change(&r)
		if _, err := r.Verify(keys); !errors.Is(err, tc.want) {
			t.Errorf("%s: got %v, want %v", name, err, tc.want)
		}
	}
}

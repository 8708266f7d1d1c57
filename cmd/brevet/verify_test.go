package main

import (
	"context"
	"crypto/rand"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/audit"
	"github.com/brevet-dev/brevet/internal/testkit"
	signednote "golang.org/x/mod/sumdb/note"
)

// signatory signs with a separate key.
type signatory struct {
	signer signednote.Signer
	key    string
	signed int
	done   context.CancelFunc
}

func newSignatory(t *testing.T) *signatory {
	t.Helper()
	private, public, err := signednote.GenerateKey(rand.Reader, "log.test")
	if err != nil {
		t.Fatal(err)
	}
	signer, err := signednote.NewSigner(private)
	if err != nil {
		t.Fatal(err)
	}
	return &signatory{signer: signer, key: public}
}

func (n *signatory) Origin() string { return "log.test" }

// Keys is called before each signature. When it is called again, the previous signature has been stored.
func (n *signatory) Keys(context.Context) ([]string, error) {
	if n.signed > 0 {
		n.done()
	}
	return []string{n.key}, nil
}

func (n *signatory) Sign(_ context.Context, text string) ([]byte, error) {
	n.signed++
	return signednote.Sign(&signednote.Note{Text: text}, n.signer)
}

// audited is a ledger with some entries and a checkpoint over them.
type audited struct {
	db                 *testkit.DB
	dir, urlFile       string
	key, kept, strange string
}

func newAudited(t *testing.T) audited {
	t.Helper()
	a := audited{db: testkit.NewDB(t), dir: t.TempDir()}
	l, n := a.db.Ledger(t), newSignatory(t)
	for range 5 {
		if err := l.Refuse(t.Context(), broker.Refusal{Time: time.Now(), Code: "invalid"}); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	n.done = cancel
	if err := l.Seal(ctx, n); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if err := l.Refuse(t.Context(), broker.Refusal{Time: time.Now(), Code: "invalid"}); err != nil {
		t.Fatal(err)
	}
	var signed string
	if err := testkit.Connect(t, a.db.AuditorURL).QueryRow(t.Context(), `SELECT note FROM checkpoints`).Scan(&signed); err != nil {
		t.Fatal(err)
	}
	a.urlFile, a.key = a.write(t, "auditor-url", a.db.AuditorURL), a.write(t, "log.keys", n.key+"\n")
	a.kept, a.strange = a.write(t, "kept", signed), newSignatory(t).key
	return a
}

func (a audited) write(t *testing.T, name, text string) (path string) {
	t.Helper()
	path = filepath.Join(a.dir, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestAuditVerify(t *testing.T) {
	a := newAudited(t)
	verify := func(args ...string) result { return inProcess(t, append([]string{"audit", "verify"}, args...)...) }
	online, key := "--database-url-file="+a.urlFile, "--key-file="+a.key
	verify(online, key, "--checkpoint", a.kept).want(t, 0, "The record is intact: 6 entries, of which the log's key signed 5", "Entries from 5 on are not signed yet")
	verify(online).want(t, 0, "of which checkpoints cover 5", "NO SIGNATURE WAS VERIFIED")
	verify(online, "--key", a.strange).want(t, 1, "THE RECORD IS DAMAGED, first at 0 to 4", "checkpoint_unsigned: a checkpoint is not signed by the log's key")
	verify(online, "--key", a.strange, "--checkpoint", a.kept).want(t, 2, "--checkpoint "+a.kept, "no known key")
	verify(online, "--key", "x").want(t, 2, `"x" is not a public key`)
	verify(online, "--key-file", a.write(t, "no-keys", "\n")).want(t, 2, "no-keys has no key")
	verify().want(t, 2, "--database-url-file")
	verify("--database-url-file=/nowhere").want(t, 2, "--database-url-file")
	if got := object(t, verify(online, key, "-o", "json").out); got["entries"] != 6.0 || got["sealed"] != 5.0 || got["signatures"] != true {
		t.Errorf("got %v", got)
	}

	record := filepath.Join(a.dir, "record.ndjson.gz")
	inProcess(t, "audit", "snapshot", record, online).want(t, 0, "wrote "+record)
	verify("--file", record, key).want(t, 0, "The record is intact: 6 entries")
	whole := read(t, record)
	verify("--file", a.write(t, "half", whole[:len(whole)/2]), key).want(t, 2, "the snapshot is incomplete")
	inProcess(t, "audit", "snapshot", filepath.Join(a.dir, "no", "folder"), online).want(t, 1, "no such file")

	conn := testkit.Connect(t, a.db.AdminURL)
	for _, sql := range []string{
		`SET session_replication_role = replica`,
		`UPDATE entries SET body = convert_to(replace(convert_from(body, 'UTF8'), 'invalid', 'unavailable'), 'UTF8') WHERE index = 3`,
	} {
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	verify(online, key).want(t, 1, "THE RECORD IS DAMAGED, first at 3", "entry_changed: an entry was changed after it was made")
	if got := object(t, verify(online, key, "-o", "json").out)["findings"].([]any); len(got) != 1 {
		t.Errorf("got %v, want one finding", got)
	}
}

// TestFindingsAreDocumented checks that the documentation explains each finding as the program does.
func TestFindingsAreDocumented(t *testing.T) {
	text := read(t, filepath.Join(root, "docs", "audit.md"))
	for code, meaning := range audit.Meanings {
		if row := "| `" + string(code) + "` | " + meaning + " |\n"; !strings.Contains(text, row) {
			t.Errorf("docs/audit.md lacks %q", row)
		}
	}
}

// TestLedgerPrune checks that verification names the entries that the owner of the ledger has dropped.
func TestLedgerPrune(t *testing.T) {
	a := audited{db: testkit.NewDB(t), dir: t.TempDir()}
	a.db.SmallPartitions(t, 2)
	l, n := a.db.Ledger(t), newSignatory(t)
	var calls sync.WaitGroup
	for range 257 {
		calls.Go(func() {
			if err := l.Refuse(t.Context(), broker.Refusal{Time: time.Now().Add(-72 * time.Hour), Code: "invalid"}); err != nil {
				t.Error(err)
			}
		})
	}
	calls.Wait()
	ctx, cancel := context.WithCancel(t.Context())
	n.done = cancel
	if err := l.Seal(ctx, n); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	owner, broker := a.write(t, "owner-url", a.db.AdminURL), a.write(t, "broker-url", a.db.BrokerURL)
	prune := func(url string, before time.Time, args ...string) result {
		return inProcess(t, append([]string{"ledger", "prune", "--before", before.Format(time.DateOnly), "--database-url-file", url}, args...)...)
	}
	recent := time.Now().Add(-24 * time.Hour)
	prune(owner, time.Now().Add(48*time.Hour)).want(t, 1, "--before: must be a date in the past")
	prune(broker, recent).want(t, 1, "does not own the ledger's tables")
	prune(owner, time.Now().Add(-240*time.Hour)).want(t, 0, "0 to 255", "kept: not all of its entries are that old")
	prune(owner, recent, "--dry-run").want(t, 0, "0 to 255", "would be dropped", "256 to 511", "kept: its last entry may still come")
	got := prune(owner, recent, "-o", "json")
	got.want(t, 0)
	if report := object(t, got.out); len(report["dropped"].([]any)) != 1 || report["stays"] == nil || report["dry_run"] != false {
		t.Errorf("got %s", got.out)
	}
	prune(owner, recent).want(t, 0, "256 to 511", "kept: its last entry may still come")
	auditor := "--database-url-file=" + a.write(t, "auditor-url", a.db.AuditorURL)
	key := "--key=" + n.key
	inProcess(t, "audit", "verify", auditor, key).want(t, 0, "The record is intact: 258 entries", "Of entries 0 to 255, 256 were dropped on ", "recorded in entry 257")
	record := filepath.Join(a.dir, "pruned.ndjson.gz")
	inProcess(t, "audit", "snapshot", record, auditor).want(t, 0)
	inProcess(t, "audit", "verify", "--file", record, key).want(t, 0, "The record is intact: 258 entries", "Of entries 0 to 255, 256 were dropped")
}

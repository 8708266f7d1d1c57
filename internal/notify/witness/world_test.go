package witness_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/audit"
	"github.com/brevet-dev/brevet/internal/ledger"
	"github.com/brevet-dev/brevet/internal/notify/witness"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/brevet-dev/brevet/scopes"
	"golang.org/x/mod/sumdb/note"
)

func TestMain(m *testing.M) { os.Exit(testkit.Main(m)) }

const origin = testkit.LogName

var catalogue = []scopes.File{
	{Name: "scopes.yaml", Data: []byte(`scopes:
  - name: git.issues.read
    title: Read issues
    authority: read
    resource: git:issues
    ttl: {default: 5m, max: 15m}
    credential: {kind: jwt, audience: https://git.test}
`)},
	{Name: "policy.cedar", Data: []byte(`@id("all") permit (principal, action, resource);`)},
}

// place is one ledger, sealed with a key in Vault.
type place struct {
	*ledger.Ledger
	stack *testkit.Stack
	db    *testkit.DB
	keys  []string
}

func newPlace(t *testing.T) *place {
	t.Helper()
	s := testkit.NewStack(t, testkit.Options{Catalogue: catalogue})
	keys, err := s.LogKey.Keys(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return &place{s.DB.Ledger(t), s, s.DB, keys}
}

// twin returns another ledger whose checkpoints are signed with the same key.
func (p *place) twin(t *testing.T) *place {
	t.Helper()
	db := testkit.NewDB(t)
	twin := &place{db.Ledger(t), p.stack, db, p.keys}
	inBackground(t, func(ctx context.Context) error { return twin.Seal(ctx, p.stack.LogKey) })
	return twin
}

// grow appends entries and waits until a checkpoint covers them.
func (p *place) grow(t *testing.T, entries int) {
	t.Helper()
	for range entries {
		if err := p.Refuse(t.Context(), broker.Refusal{Time: time.Now(), Code: "invalid"}); err != nil {
			t.Fatalf("Refuse: %v", err)
		}
	}
	want := int64(len(p.db.Entries(t)))
	eventually(t, fmt.Sprintf("checkpoint of %d entries", want), func() bool {
		size, _, _, err := p.Growth(t.Context(), 0)
		return err == nil && size == want
	})
}

// checkpoint returns the latest checkpoint with at least this many cosignatures, and verifies the signature of the log.
func (p *place) checkpoint(t *testing.T, witnesses int) (string, audit.Checkpoint) {
	t.Helper()
	signed, err := p.Checkpoint(t.Context(), witnesses)
	if err != nil {
		t.Fatal(err)
	}
	v, err := note.NewVerifier(p.keys[0])
	if err != nil {
		t.Fatal(err)
	}
	c, err := audit.OpenCheckpoint([]byte(signed), origin, note.VerifierList(v))
	if err != nil {
		t.Fatal(err)
	}
	return signed, c
}

// kept counts the stored cosignatures.
func (p *place) kept(t *testing.T) (n int) {
	t.Helper()
	if err := testkit.Connect(t, p.db.AuditorURL).QueryRow(t.Context(), `SELECT count(*) FROM cosignatures`).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func (p *place) witness(t *testing.T, name string) *testkit.Witness {
	t.Helper()
	return testkit.NewWitness(t, name, origin, p.keys...)
}

// carrying is a running carrier and the events that it reported.
type carrying struct {
	log testkit.Buffer

	mu       sync.Mutex
	cosigned map[string]int64
	failed   map[witness.Why]int
	stop     func()
	status   func() []witness.Status
}

// carry runs a carrier of the ledger until stop is called or the test ends.
func (p *place) carry(t *testing.T, cfg witness.Config) *carrying {
	t.Helper()
	c := &carrying{cosigned: map[string]int64{}, failed: map[witness.Why]int{}}
	cfg.Log, cfg.Logger = p.Ledger, slog.New(slog.NewTextHandler(&c.log, nil))
	cfg.OnCosigned = func(name string, size int64) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.cosigned[name] = size
	}
	cfg.OnFailure = func(_ string, why witness.Why) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.failed[why]++
	}
	carrier, err := witness.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	c.stop, c.status = inBackground(t, carrier.Run), carrier.Status
	return c
}

func (c *carrying) size(name string) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cosigned[name]
}

func (c *carrying) failures(why witness.Why) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.failed[why]
}

// of returns the configuration of witnesses with the names w0, w1, ...
func of(all ...*testkit.Witness) (specs []witness.Spec) {
	for n, w := range all {
		specs = append(specs, witness.Spec{Name: fmt.Sprintf("w%d", n), Key: w.Key, Target: w.Target()})
	}
	return specs
}

func inBackground(t *testing.T, run func(context.Context) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = run(ctx)
	}()
	stop = func() { cancel(); <-done }
	t.Cleanup(stop)
	return stop
}

// patience is how long a test waits for an event on a busy machine.
const patience = time.Minute

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(patience)
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("waited %s for a %s", patience, what)
		}
	}
}

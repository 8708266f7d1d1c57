package witness_test

import (
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/internal/audit"
	"github.com/brevet-dev/brevet/internal/notify/witness"
	"github.com/brevet-dev/brevet/internal/secret"
	"github.com/brevet-dev/brevet/internal/testkit"
)

func cosigner(t *testing.T, w *testkit.Witness) *audit.Cosigner {
	t.Helper()
	key, err := audit.ParseCosigner(w.Key)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func TestWitnessesCosignAGrowingLog(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	one, two := p.witness(t, "one.example/w"), p.witness(t, "two.example/w")
	c := p.carry(t, witness.Config{Witnesses: of(one, two)})
	for _, more := range []int{1, 2, 300} {
		p.grow(t, more)
		eventually(t, "cosignature", func() bool { _, now := p.checkpoint(t, 0); return one.Seen() == now.N && two.Seen() == now.N })
	}
	eventually(t, "cosigned checkpoint", func() bool { return c.size("w0") == 303 && c.size("w1") == 303 })
	signed, got := p.checkpoint(t, 2)
	names, last, err := audit.Cosigned([]byte(signed), cosigner(t, one), cosigner(t, two))
	if err != nil || len(names) != 2 || got.N != 303 || time.Since(last) > time.Minute {
		t.Errorf("got the checkpoint %d of %q at %s, %v, want 303 of both", got.N, names, last, err)
	}
	if _, err := p.Checkpoint(t.Context(), 3); !errors.Is(err, audit.ErrNotYet) {
		t.Errorf("got %v for more witnesses than there are, want %v", err, audit.ErrNotYet)
	}

	// A replica that takes over learns what size the witness has, and continues from there.
	c.stop()
	p.grow(t, 4)
	before := one.Calls()
	next := p.carry(t, witness.Config{Witnesses: of(one)})
	eventually(t, "cosignature after the change", func() bool { return next.size("w0") == 307 })
	if calls := one.Calls() - before; calls != 2 || next.failures(witness.WhyCall)+next.failures(witness.WhyHistory) > 0 {
		t.Errorf("got %d calls and the log %q, want 2 calls, and no failure", calls, next.log.String())
	}
	if _, got := p.checkpoint(t, 2); got.N != 303 {
		t.Errorf("got the checkpoint %d, want 303: one witness has not seen the later one", got.N)
	}
}

func TestHangingWitnessDelaysNoOther(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	hanging, sound := p.witness(t, "one.example/w"), p.witness(t, "two.example/w")
	hanging.Break(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.ReadAll(r.Body) // needed so that the server notices a disconnect
		<-r.Context().Done()
	})
	c := p.carry(t, witness.Config{Witnesses: of(hanging, sound)})
	p.grow(t, 1)
	eventually(t, "call", func() bool { return hanging.Calls() > 0 })
	for range 3 {
		p.grow(t, 1)
		eventually(t, "cosignature", func() bool { _, now := p.checkpoint(t, 0); return c.size("w1") == now.N })
	}
	if hanging.Seen() != 0 || hanging.Calls() != 1 {
		t.Errorf("got %d calls that ended, want one that hangs", hanging.Calls())
	}
}

// A failure is logged when it begins and when it ends, and counted each time.
func TestWitnessFailureIsLoggedAtStartAndEnd(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	w, other := p.witness(t, "one.example/w"), p.witness(t, "two.example/w")
	p.grow(t, 1)
	for name, tc := range map[string]struct {
		answer http.HandlerFunc
		want   error
	}{
		"out of order":     {func(out http.ResponseWriter, _ *http.Request) { out.WriteHeader(503) }, witness.ErrAnswer},
		"a redirect":       {http.RedirectHandler("https://elsewhere.example", http.StatusTemporaryRedirect).ServeHTTP, witness.ErrAnswer},
		"no key":           {func(out http.ResponseWriter, _ *http.Request) { out.WriteHeader(403) }, witness.ErrUnknown},
		"no log":           {func(out http.ResponseWriter, _ *http.Request) { out.WriteHeader(404) }, witness.ErrUnknown},
		"a yes of nobody":  {func(http.ResponseWriter, *http.Request) {}, audit.ErrCosignature},
		"a yes of another": {func(out http.ResponseWriter, r *http.Request) { other.ServeHTTP(out, r) }, audit.ErrCosignature},
		"sizes that wander": {func(out http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			out.WriteHeader(409)
			if strings.HasPrefix(string(body), "old 0\n") {
				_, _ = io.WriteString(out, "1\n")
			} else {
				_, _ = io.WriteString(out, "0\n")
			}
		}, witness.ErrAnswer},
	} {
		t.Run(name, func(t *testing.T) {
			kept := p.kept(t)
			w.Break(tc.answer)
			c := p.carry(t, witness.Config{Witnesses: of(w)})
			eventually(t, "second failure", func() bool { return c.failures(witness.WhyCall) > 1 })
			if got := p.kept(t); got != kept {
				t.Errorf("got %d cosignatures more", got-kept)
			}
			eventually(t, "status", func() bool {
				return slices.Equal(c.status(), []witness.Status{{Name: "w0", Tended: true, Failing: witness.WhyCall}})
			})
			w.Break(nil)
			eventually(t, "end of the failures", func() bool { return strings.Contains(c.log.String(), "checkpoints are accepted again") })
			eventually(t, "status after it", func() bool {
				return slices.Equal(c.status(), []witness.Status{{Name: "w0", Tended: true}})
			})
			text := c.log.String()
			if strings.Count(text, "checkpoints are not accepted") != 1 || !strings.Contains(text, tc.want.Error()) || !strings.Contains(text, "witness=w0") {
				t.Errorf("got the log %q, want %q in it once", text, tc.want)
			}
		})
	}
}

// Two histories under one key: the witness cosigns only the first one that it saw, and the other one raises an alarm.
func TestSplitViews(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.grow(t, 5)
	for name, entries := range map[string]int{"longer": 7, "as long": 5, "shorter": 3} {
		t.Run(name, func(t *testing.T) {
			w := p.witness(t, "one.example/w")
			first := p.carry(t, witness.Config{Witnesses: of(w)})
			eventually(t, "cosignature", func() bool { return first.size("w0") == 5 })
			first.stop()
			twin := p.twin(t)
			twin.grow(t, entries)
			c := twin.carry(t, witness.Config{Witnesses: of(w)})
			eventually(t, "alarm", func() bool { return c.failures(witness.WhyHistory) > 1 })
			if text := c.log.String(); strings.Count(text, "level=ERROR") != 1 || !strings.Contains(text, "another history") {
				t.Errorf("got the log %q, want one alarm", text)
			}
			if w.Seen() != 5 || twin.kept(t) != 0 {
				t.Errorf("the witness has seen %d entries and %d cosignatures are kept, want 5 and none", w.Seen(), twin.kept(t))
			}
		})
	}
}

func TestOneReplicaServesAWitnessAtATime(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	w := p.witness(t, "one.example/w")
	q := &place{p.db.Ledger(t), p.stack, p.db, p.keys}
	first := p.carry(t, witness.Config{Witnesses: of(w)})
	p.grow(t, 1)
	eventually(t, "cosignature", func() bool { return first.size("w0") == 1 })
	second := q.carry(t, witness.Config{Witnesses: of(w)})
	p.grow(t, 1)
	eventually(t, "cosignature", func() bool { return first.size("w0") == 2 })
	if second.size("w0") != 0 {
		t.Errorf("got a cosignature of %d by the second replica, want none while the first is there", second.size("w0"))
	}
	first.stop()
	p.grow(t, 1)
	eventually(t, "cosignature by the second replica", func() bool { return second.size("w0") == 3 })
}

func TestInvalidWitnessesAreRefused(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	w := p.witness(t, "one.example/w")
	for name, spoil := range map[string]func(*witness.Config){
		"no name":      func(c *witness.Config) { c.Witnesses[0].Name = "" },
		"a key twice":  func(c *witness.Config) { c.Witnesses = append(c.Witnesses, c.Witnesses[0]); c.Witnesses[1].Name = "w9" },
		"a name twice": func(c *witness.Config) { c.Witnesses = append(c.Witnesses, c.Witnesses[0]) },
		"a log's key":  func(c *witness.Config) { c.Witnesses[0].Key = p.keys[0] },
		"http":         func(c *witness.Config) { c.Witnesses[0].URL = secret.New("http://witness.example/CANARY") },
		"two anchors": func(c *witness.Config) {
			c.Anchors = []witness.Anchor{{Name: "x", Place: witness.File("x")}, {Name: "x", Place: witness.Git("x")}}
		},
		"an anchor without a name": func(c *witness.Config) { c.Anchors = []witness.Anchor{{Place: witness.File("x")}} },
		"no ledger":                func(c *witness.Config) { c.Log = nil },
	} {
		cfg := witness.Config{
			Log: p.Ledger, Witnesses: of(w), Logger: p.stack.Config.Log,
			OnCosigned: func(string, int64) {}, OnFailure: func(string, witness.Why) {},
		}
		if _, err := witness.New(cfg); err != nil {
			t.Fatal(err)
		}
		spoil(&cfg)
		if _, err := witness.New(cfg); err == nil || strings.Contains(err.Error(), "CANARY") {
			t.Errorf("%s: got %v, want an error that quotes no URL", name, err)
		}
	}
}

package ledger_test

import (
	"bytes"
	"errors"
	"log/slog"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/ledger"
	"github.com/brevet-dev/brevet/internal/ledger/postgres"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/brevet-dev/brevet/migrations"
)

// C2: the answer to a commit is lost.
func TestBeginSurvivesALostCommitResponse(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name      string
		how       cut
		alone     bool // the read-back fails too
		warm      bool // the statement is prepared already
		want      error
		committed bool
	}{
		{"cut before the statement", cutStatement, false, true, broker.ErrLedgerUnavailable, false},
		{"cut before the first statement", cutStatement, false, false, broker.ErrLedgerUnavailable, false},
		{"cut before the answer", cutAnswer, false, true, nil, true},
		{"cut before the end of the answer", cutEnd, false, true, nil, true},
		{"no answer in time", stall, false, true, nil, true},
		{"cut, and the read-back too", cutAnswer, true, true, broker.ErrLedgerUnavailable, true},
		{"all but the end, and no read-back", cutEnd, true, true, broker.ErrLedgerUnavailable, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			db := testkit.NewDB(t)
			p, databaseURL := through(t, db.BrokerURL)
			l := open(t, databaseURL)
			want := 2
			if tc.warm {
				begin(t, l, allowed(nil))
				want++
			}
			rec := allowed(nil)
			p.arm(rec.ID, tc.how, tc.alone)
			began := time.Now()
			earlier, err := l.Begin(t.Context(), rec)
			if !errors.Is(err, tc.want) || earlier != nil {
				t.Errorf("got %v, %v, want %v", earlier, err, tc.want)
			}
			if took := time.Since(began); took > flushTimeout+15*time.Second {
				t.Errorf("took %s, with a deadline of %s", took, flushTimeout)
			}
			if !p.fired() {
				t.Error("the statement did not pass the proxy")
			}
			p.restore()
			begin(t, l, allowed(nil))
			if !tc.committed {
				want--
			}
			if got := len(db.Entries(t)); got != want {
				t.Errorf("got %d entries, want %d", got, want)
			}
			if _, err := l.Get(t.Context(), rec.ID, everything); (err == nil) != tc.committed {
				t.Errorf("Get: got %v, want it committed: %t", err, tc.committed)
			}
			db.Check(t)
		})
	}
}

func TestOutcomeSurvivesALostCommitResponse(t *testing.T) {
	t.Parallel()
	start := moment()
	db := testkit.NewDB(t)
	p, databaseURL := through(t, db.BrokerURL)
	l := open(t, databaseURL)
	rec := allowed(nil)
	begin(t, l, rec)
	p.arm("vault_unavailable", cutAnswer, false)
	out := broker.Outcome{ID: rec.ID, Time: start, Status: broker.StatusFailed, Detail: "vault_unavailable"}
	if err := l.RecordOutcome(t.Context(), out); err != nil || !p.fired() {
		t.Errorf("RecordOutcome: got %v", err)
	}
	p.arm("unauthenticated", cutAnswer, false)
	if err := l.Refuse(t.Context(), broker.Refusal{Time: start, Code: "unauthenticated"}); err != nil || !p.fired() {
		t.Errorf("Refuse: got %v", err)
	}
	if got := len(db.Entries(t)); got != 3 {
		t.Errorf("got %d entries, want 3", got)
	}
	db.Check(t)
}

func TestStoppedPostgres(t *testing.T) {
	db := testkit.NewDB(t)
	l := open(t, db.BrokerURL)
	begin(t, l, allowed(nil))
	server := testkit.Devstack(t).Postgres
	defer func() {
		if err := server.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
	}()

	var standings sync.Map
	var wg sync.WaitGroup
	stopped := make(chan struct{})
	for range 8 {
		wg.Go(func() {
			for rec := range records(100000) {
				_, err := l.Begin(t.Context(), rec)
				if err == nil {
					standings.Store(rec.ID, true)
					continue
				}
				if !errors.Is(err, broker.ErrLedgerUnavailable) {
					t.Errorf("got %v, want ErrLedgerUnavailable", err)
				}
				return
			}
		})
	}
	go func() { defer close(stopped); _ = server.Stop() }()
	wg.Wait()
	<-stopped
	began := time.Now()
	_, err := l.Begin(t.Context(), allowed(nil))
	if took := time.Since(began); !errors.Is(err, broker.ErrLedgerUnavailable) || took > 10*time.Second {
		t.Errorf("while it is down: got %v after %s, want ErrLedgerUnavailable by its deadline", err, took)
	}
	keepsQuiet(t, err, db.BrokerURL)
	if err := l.Ready(t.Context()); !errors.Is(err, broker.ErrLedgerUnavailable) {
		t.Errorf("Ready: got %v, want ErrLedgerUnavailable", err)
	}
	if _, err := l.List(t.Context(), broker.Query{Limit: 1}, everything); !errors.Is(err, broker.ErrLedgerUnavailable) {
		t.Errorf("List: got %v, want ErrLedgerUnavailable", err)
	}

	if err := server.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	began = time.Now()
	until(t, "records are kept again", func() bool {
		_, err := l.Begin(t.Context(), allowed(nil))
		return err == nil
	})
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("recovered after %s, want 5s at most", took)
	}
	standings.Range(func(id, _ any) bool {
		if _, err := l.Get(t.Context(), id.(string), everything); err != nil {
			t.Errorf("Begin returned nil for %s, and it is not there: %v", id, err)
		}
		return true
	})
	db.Check(t)
}

// A commit that does not get the lock on the head in time is given up, and does not happen later.
func TestStuckCommit(t *testing.T) {
	t.Parallel()
	db := testkit.NewDB(t)
	l := open(t, db.BrokerURL)
	_, release := hold(t, db)
	defer release()
	began := time.Now()
	_, err := l.Begin(t.Context(), allowed(nil))
	if took := time.Since(began); !errors.Is(err, broker.ErrLedgerUnavailable) || took > 15*time.Second {
		t.Errorf("got %v after %s, want ErrLedgerUnavailable by its deadline", err, took)
	}
	release()
	begin(t, l, denied(nil))
	if entries := db.Entries(t); len(entries) != 1 || entries[0].Kind != "request.denied" {
		t.Errorf("got %v, want only what was confirmed", entries)
	}
	db.Check(t)
}

func TestFullQueue(t *testing.T) {
	t.Parallel()
	db := testkit.NewDB(t)
	// The timeout is long, so that no caller gives up while the queue fills on a slow machine.
	l, err := ledger.Open(t.Context(), ledger.Config{
		URL: db.BrokerURL, Log: slog.New(slog.DiscardHandler), FlushTimeout: 2 * time.Minute,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	waiting, release := hold(t, db)
	defer release()
	var wg sync.WaitGroup
	wg.Go(func() { _, _ = l.Begin(t.Context(), allowed(nil)) })
	waiting()
	for range 4096 {
		wg.Go(func() { _, _ = l.Begin(t.Context(), allowed(nil)) })
	}
	until(t, "the queue is full", func() bool { return l.Queued() == 4096 })
	began := time.Now()
	_, err = l.Begin(t.Context(), allowed(nil))
	if took := time.Since(began); !errors.Is(err, broker.ErrLedgerUnavailable) || took > 5*time.Second {
		t.Errorf("got %v after %s, want ErrLedgerUnavailable at once", err, took)
	}
	release()
	wg.Wait()
	db.Check(t)
}

// If an operator cancels a commit's wait for its standby, Postgres reports success, with a warning that the commit may be
// lost with the server. The ledger must not take that for success. The setting makes the commits of every database of the
// server wait, so no other test may run meanwhile.
func TestCancelledWaitForStandby(t *testing.T) {
	db := testkit.NewDB(t)
	l := open(t, db.BrokerURL)
	begin(t, l, allowed(nil))
	admin := testkit.Connect(t, db.AdminURL)
	exec(t, admin, `SET synchronous_commit = local`) // its own commits must not wait
	exec(t, admin, `ALTER SYSTEM SET synchronous_standby_names = 'nobody'`)
	exec(t, admin, `SELECT pg_reload_conf()`)
	defer func() {
		exec(t, admin, `ALTER SYSTEM RESET synchronous_standby_names`)
		exec(t, admin, `SELECT pg_reload_conf()`)
	}()
	until(t, "commits wait", func() bool {
		var names string
		err := admin.QueryRow(t.Context(), `SHOW synchronous_standby_names`).Scan(&names)
		return err == nil && names == "nobody"
	})
	result := make(chan error, 1)
	go func() {
		// Commits begin to wait once the checkpointer has read the setting, which is later than when the sessions have.
		var err error
		for err == nil {
			_, err = l.Begin(t.Context(), allowed(nil))
		}
		result <- err
	}()
	until(t, "the wait is cancelled", func() bool {
		var n int
		err := admin.QueryRow(t.Context(),
			`SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity WHERE wait_event = 'SyncRep'`).Scan(&n)
		return err == nil && n > 0
	})
	if err := <-result; !errors.Is(err, broker.ErrLedgerUnavailable) {
		t.Errorf("got %v, want ErrLedgerUnavailable", err)
	}
}

func TestOpenRefuses(t *testing.T) {
	t.Parallel()
	db, empty := testkit.NewDB(t), testkit.EmptyDB(t)
	u, err := url.Parse(db.BrokerURL)
	if err != nil {
		t.Fatal(err)
	}
	with := func(name, value string) string {
		changed := *u
		query := changed.Query()
		query.Set(name, value)
		changed.RawQuery = query.Encode()
		return changed.String()
	}
	nowhere := *u
	nowhere.Host = "127.0.0.1:1"
	for _, tc := range []struct {
		name, url string
		want      error
	}{
		{"synchronous_commit off", with("synchronous_commit", "off"), postgres.ErrUnsafe},
		{"no schema", empty.AdminURL, migrations.ErrOutdated},
		{"a wrong password", strings.Replace(db.BrokerURL, "@", "x@", 1), broker.ErrLedgerUnavailable},
		{"nobody there", nowhere.String(), broker.ErrLedgerUnavailable},
		{"not a URL", "postgres://brevet:hunter2@[/", migrations.ErrURL},
		{"a MERGE that hides rows", db.AsVersion(t, db.BrokerURL, 15_00_15), postgres.ErrUnsafe},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l, err := ledger.Open(t.Context(), ledger.Config{URL: tc.url, Log: slog.New(slog.DiscardHandler)})
			if l != nil || !errors.Is(err, tc.want) {
				t.Fatalf("got %v, want %v", err, tc.want)
			}
			keepsQuiet(t, err, tc.url)
		})
	}
}

func TestOpenWarnsOfASuperuser(t *testing.T) {
	t.Parallel()
	db := testkit.NewDB(t)
	for name, tc := range map[string]struct {
		url  string
		want bool
	}{"superuser": {db.AdminURL, true}, "broker": {db.BrokerURL, false}} {
		var log bytes.Buffer
		l, err := ledger.Open(t.Context(), ledger.Config{URL: tc.url, Log: slog.New(slog.NewTextHandler(&log, nil))})
		if err != nil {
			t.Fatal(err)
		}
		if len(l.CursorKey()) != 32 {
			t.Errorf("got a cursor key of %d bytes, want 32", len(l.CursorKey()))
		}
		l.Close()
		if got := strings.Contains(log.String(), "level=WARN"); got != tc.want {
			t.Errorf("%s: got a warning: %t, want %t", name, got, tc.want)
		}
	}
}

// keepsQuiet checks that an error shows nothing of the URL or of a record.
func keepsQuiet(t *testing.T, err error, databaseURL string) {
	t.Helper()
	secrets := []string{"look at", "hunter2", "postgres://"}
	if u, parseErr := url.Parse(databaseURL); parseErr == nil {
		password, _ := u.User.Password()
		secrets = append(secrets, password, u.User.Username(), u.Host)
	}
	for _, secret := range secrets {
		if strings.Contains(err.Error(), secret) {
			t.Errorf("the error shows %q: %v", secret, err)
		}
	}
}

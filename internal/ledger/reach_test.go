package ledger_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/ledger"
	"github.com/brevet-dev/brevet/internal/testkit"
)

// I14: no reach shows or counts a record, a live credential or a quarantine outside it, and each reach shows all inside it.
func TestQueriesStayWithinReach(t *testing.T) {
	t.Parallel()
	db := testkit.NewDB(t)
	l := db.Ledger(t)
	records, inForce := map[string]string{}, []string{} // SPIFFE IDs by record
	for i, place := range places {
		if strings.Count(place, "/") > 2 {
			rec := allowed(as(moment(), place, "git.read", fmt.Sprintf("t-%d", i), 0))
			begin(t, l, rec)
			records[rec.ID] = place
		}
	}
	for i := 0; i < len(places); i += 2 { // after the records, since nothing begins in quarantine
		announce(t, l, quarantine(places[i]))
		inForce = append(inForce, places[i])
	}
	for seed := range uint64(150) {
		r := drawReach(rand.New(rand.NewPCG(seed, 4)))
		seen := map[string]map[string]bool{"List": {}, "Live": {}, "Get": {}, "Quarantines": {}, "LiveCounts": {}}
		look(t, l, r, seen, records)
		for _, q := range inForce {
			if got, want := seen["Quarantines"][q], inside(r, q); got != want {
				t.Errorf("%d: %+v sees the quarantine of %s: %t, want %t", seed, r, q, got, want)
			}
		}
		for id, place := range records {
			for _, way := range []string{"List", "Live", "Get"} {
				if got, want := seen[way][id], inside(r, place); got != want {
					t.Errorf("%d: %s with %+v shows the record of %s: %t, want %t", seed, way, r, place, got, want)
				}
			}
			if got, want := seen["LiveCounts"][place], inside(r, place); got != want {
				t.Errorf("%d: %+v counts what %s has: %t, want %t", seed, r, place, got, want)
			}
		}
	}
}

func look(t *testing.T, l *ledger.Ledger, r broker.Reach, seen map[string]map[string]bool, records map[string]string) {
	t.Helper()
	page, err := l.List(t.Context(), broker.Query{Limit: 100}, r)
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range page.Records {
		seen["List"][v.ID] = true
	}
	held, err := l.Live(t.Context(), broker.Selector{}, r, broker.LivePage{Limit: 100})
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range held {
		seen["Live"][h.ID] = true
	}
	for id := range records {
		_, err := l.Get(t.Context(), id, r)
		if err != nil && !errors.Is(err, broker.ErrNotFound) {
			t.Fatal(err)
		}
		seen["Get"][id] = err == nil
	}
	counted, err := l.LiveCounts(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range counted.BySandbox {
		seen["LiveCounts"][g.Name] = true
	}
	if n := int64(len(counted.BySandbox)); counted.Total.Count != n || n > 0 && counted.ByScope[0].Count != n {
		t.Errorf("%+v: got %+v, want one of each sandbox", r, counted)
	}
	quarantines, err := l.Quarantines(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	for _, q := range quarantines {
		seen["Quarantines"][q.SPIFFEID] = true
	}
}

// drawReach draws any reach, including kinds that no caller gets.
func drawReach(random *rand.Rand) broker.Reach {
	var r broker.Reach
	draw := func(from []string) string { return from[random.IntN(len(from))] }
	for range random.IntN(3) {
		r.Within = append(r.Within, draw(places))
	}
	if random.IntN(4) == 0 {
		r.Within = append(r.Within, draw(notPlaces))
	}
	if random.IntN(4) == 0 {
		r.TrustDomains = append(r.TrustDomains, draw([]string{"acme.test", "other.test", "acme", ""}))
	}
	if random.IntN(5) == 0 {
		r.Subject = draw(places[1:])
	}
	r.All = random.IntN(10) == 0
	return r
}

// The entry of a command names the person who gave it, and so do the projections.
func TestCommandNamesThePerson(t *testing.T) {
	t.Parallel()
	db := testkit.NewDB(t)
	l := db.Ledger(t)
	const alice = "https://idp.test#alice"
	by := func(cmd broker.Command) broker.Command {
		cmd.Actor = &broker.Actor{Person: alice, Name: "Alice \x1b[2J"}
		return cmd
	}
	announce(t, l, by(quarantine(sandbox)), by(announced(broker.CommandTaskEnd, broker.Selector{SPIFFEID: sandbox, Task: "t"})),
		by(announced(broker.CommandRevoke, broker.Selector{Scope: "git.read"})))
	inForce, err := l.Quarantines(t.Context(), broker.Reach{Within: []string{sandbox}})
	if err != nil || len(inForce) != 1 || inForce[0].Actor != alice {
		t.Errorf("got %+v, %v, want one by %s", inForce, err, alice)
	}
	announce(t, l, by(lift(sandbox)))
	rec := allowed(nil)
	begin(t, l, rec)
	out := to(rec, broker.StatusRevoked)
	out.Actor = alice
	settle(t, l, out)
	if v, err := l.Get(t.Context(), rec.ID, everything); err != nil || v.Actor != alice {
		t.Errorf("got %+v, %v, want it ended by %s", v, err, alice)
	}
	for _, e := range db.Entries(t)[:4] {
		who, _ := e.Body["actor"].(map[string]any)
		if who["id"] != alice || who["name"] != "Alice \x1b[2J" || len(who) != 2 {
			t.Errorf("%s is by %v, want the person's id and name alone", e.Kind, who)
		}
	}
	db.Check(t)
}

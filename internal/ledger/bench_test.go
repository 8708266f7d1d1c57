package ledger_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/internal/ledger"
	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/brevet-dev/brevet/scopes"
)

// BenchmarkBegin times one durable record, for one caller and for many that share commits, and for two replicas. From the time and the
// entries of a commit at several numbers of callers follows what a commit costs, and what each entry in it.
func BenchmarkBegin(b *testing.B) {
	for _, of := range []struct{ callers, replicas int }{{1, 1}, {8, 1}, {64, 1}, {256, 1}, {64, 2}} {
		b.Run(fmt.Sprintf("callers=%d/replicas=%d", of.callers, of.replicas), func(b *testing.B) {
			db := testkit.NewDB(b)
			var replicas []*ledger.Ledger
			for range of.replicas {
				replicas = append(replicas, db.Ledger(b))
			}
			var left atomic.Int64
			left.Store(int64(b.N))
			b.ReportAllocs()
			b.ResetTimer()
			var together sync.WaitGroup
			for _, l := range replicas {
				together.Go(func() { beginAll(b, l, of.callers/of.replicas, func() bool { return left.Add(-1) >= 0 }) })
			}
			together.Wait()
			b.StopTimer()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "records/s")
			var commits int64
			if err := testkit.Connect(b, db.AdminURL).QueryRow(b.Context(), `SELECT count(DISTINCT xmin::text) FROM entries`).Scan(&commits); err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(float64(b.N)/float64(commits), "entries/commit")
			b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(commits), "µs/commit")
		})
	}
}

// BenchmarkPartitions times one durable record of 64 callers, when there are few partitions and when there are many.
func BenchmarkPartitions(b *testing.B) {
	for _, used := range []int{1, 12} {
		b.Run(fmt.Sprintf("used=%d", used), func(b *testing.B) {
			db := testkit.NewDB(b)
			l := db.Ledger(b)
			before := int64(0)
			if used > 1 {
				conn := testkit.Connect(b, db.AdminURL)
				if _, err := conn.Exec(b.Context(), `SELECT add_partition(256) FROM generate_series(2, $1)`, used); err != nil {
					b.Fatal(err)
				}
				before = 4096 + int64(used-1)*256
			}
			var left atomic.Int64
			left.Store(before)
			beginAll(b, l, 64, func() bool { return left.Add(-1) >= 0 })
			left.Store(int64(b.N))
			b.ResetTimer()
			beginAll(b, l, 64, func() bool { return left.Add(-1) >= 0 })
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "records/s")
		})
	}
}

// beginAll makes callers append until more returns false.
func beginAll(b *testing.B, l *ledger.Ledger, callers int, more func() bool) {
	b.Helper()
	done := make(chan error, callers)
	for range callers {
		go func() {
			for more() {
				if _, err := l.Begin(b.Context(), allowed(nil)); err != nil {
					done <- err
					return
				}
			}
			done <- nil
		}()
	}
	for range callers {
		if err := <-done; err != nil {
			b.Error(err)
		}
	}
}

// smallest is a catalogue, because a stack needs one.
var smallest = []scopes.File{
	{Name: "scopes.yaml", Data: []byte(`scopes:
  - {name: a.b, title: A, authority: read, resource: 'a:b', ttl: {default: 1m, max: 1m}, credential: {kind: jwt, audience: https://a.test}}`)},
	{Name: "policies.cedar", Data: []byte(`@id("a") permit (principal, action, resource);`)},
}

// BenchmarkTree compares 64 callers who append while Vault signs checkpoints with 64 who append without checkpoints. It
// alternates between the two. A ratio of 1 means that the tree costs nothing. Run it with -benchtime 1x.
func BenchmarkTree(b *testing.B) {
	const rounds, each = 7, 3 * time.Second
	key := testkit.NewStack(b, testkit.Options{Catalogue: smallest}).LogKey
	l := testkit.NewDB(b).Ledger(b)
	records := func() float64 {
		var n atomic.Int64
		began := time.Now()
		beginAll(b, l, 64, func() bool { n.Add(1); return time.Since(began) < each })
		return float64(n.Load()) / time.Since(began).Seconds()
	}
	records() // to warm up
	for b.Loop() {
		var ratios, plain, sealed []float64
		for range rounds {
			without := records()
			ctx, stop := context.WithCancel(b.Context())
			ended := make(chan struct{})
			go func() { defer close(ended); _ = l.Seal(ctx, key) }()
			with := records()
			stop()
			<-ended
			ratios, plain, sealed = append(ratios, with/without), append(plain, without), append(sealed, with)
		}
		for _, all := range [][]float64{ratios, plain, sealed} {
			slices.Sort(all)
		}
		b.ReportMetric(ratios[rounds/2], "with/without")
		b.ReportMetric(ratios[0], "least")
		b.ReportMetric(ratios[rounds-1], "most")
		b.ReportMetric(plain[rounds/2], "records/s-without")
		b.ReportMetric(sealed[rounds/2], "records/s-with")
	}
}

package ledger_test

import (
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/brevet-dev/brevet/brevettest"
)

// BenchmarkBegin times one durable record, for one caller and for many that share commits.
func BenchmarkBegin(b *testing.B) {
	for _, callers := range []int{1, 64} {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) {
			l := brevettest.NewDB(b).Ledger(b)
			var left atomic.Int64
			left.Store(int64(b.N))
			done := make(chan error, callers)
			b.ReportAllocs()
			b.ResetTimer()
			for range callers {
				go func() {
					for left.Add(-1) >= 0 {
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
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "records/s")
		})
	}
}

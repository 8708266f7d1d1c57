package audit_test

import (
	"context"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/internal/audit"
)

// A damaged or hostile export can name any index. Verify reports it, and takes no longer than for other exports of that size.
func TestImpossibleIndexesTakeNoTime(t *testing.T) {
	t.Parallel()
	entry := func(index int64) audit.Item { return audit.Entry{Index: index, Body: []byte("{}")} }
	for name, items := range map[string][]audit.Item{
		"the highest index": {audit.Head{Size: 2}, entry(0), entry(math.MaxInt64), entry(1)},
		"a claim that very many entries were pruned": {
			audit.Head{Size: 2},
			audit.Pruned{Index: math.MaxInt64, Body: fmt.Appendf(nil, `{"first":0,"beyond":%d}`, int64(1)<<62)},
			entry(math.MaxInt64 - 1),
			entry(5),
		},
		"a tile of very many entries": {
			audit.Head{Size: 2},
			audit.Pruned{Index: math.MaxInt64, Body: fmt.Appendf(nil, `{"first":0,"beyond":%d}`, int64(1)<<62)},
			audit.Tile{Level: 0, Number: 1 << 53, Hashes: make([]byte, 256*32), Root: make([]byte, 32)},
			audit.SignedCheckpoint{Size: math.MaxInt64},
		},
	} {
		t.Run(name, func(t *testing.T) {
			done := make(chan audit.Report, 1)
			go func() {
				report, err := audit.Verify(context.WithoutCancel(t.Context()), func(yield func(audit.Item, error) bool) {
					for _, item := range items {
						if !yield(item, nil) {
							return
						}
					}
				}, audit.Config{})
				if err != nil {
					t.Error(err)
				}
				done <- report
			}()
			select {
			case report := <-done:
				if len(report.Findings) == 0 {
					t.Error("nothing was found")
				}
			case <-time.After(20 * time.Second):
				t.Fatal("Verify does not end")
			}
		})
	}
}

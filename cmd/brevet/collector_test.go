package main

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"testing"
)

// The heap may grow by as much as is live, and by 56 MiB more.
func TestHeapGrowsByTheLiveBytesAndSpare(t *testing.T) {
	t.Parallel()
	for live, want := range map[uint64]uint64{10 << 20: 76 << 20, 56 << 20: 168 << 20, 1 << 30: 2<<30 + 56<<20} {
		if got := live + live*uint64(gcPercent(live))/100; got > want || got < want*99/100 {
			t.Errorf("%d bytes live: got a heap of %d, want %d", live, got, want)
		}
	}
	if got := gcPercent(0); got != 1500 {
		t.Errorf("nothing live: got %d, want 1500", got)
	}
}

// collectLess follows what is live, unless the operator has set GOGC.
func TestCollectorFollowsTheHeap(t *testing.T) {
	before := debug.SetGCPercent(100)
	t.Cleanup(func() { debug.SetGCPercent(before) })
	percent := func() uint64 {
		in := []metrics.Sample{{Name: "/gc/gogc:percent"}}
		metrics.Read(in)
		return in[0].Value.Uint64()
	}
	t.Setenv("GOGC", "100")
	collectLess(t.Context())
	if got := percent(); got != 100 {
		t.Errorf("with GOGC: got %d, want 100", got)
	}
	t.Setenv("GOGC", "")
	collectLess(t.Context())
	small := percent()
	if small <= 100 {
		t.Errorf("got %d, want more than 100", small)
	}
	large := make([]byte, 1<<30) // untouched, so it takes no physical memory
	within(t, patience, "the percentage falls to what a GiB allows", func() bool {
		runtime.GC()
		return percent() < 110
	})
	runtime.KeepAlive(large)
	within(t, patience, "the percentage rises again", func() bool {
		runtime.GC()
		return percent() >= small*9/10
	})
}

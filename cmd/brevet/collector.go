package main

import (
	"context"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
)

// collectLess makes the garbage collector run less often until ctx ends. It is for processes that serve many calls with few live
// objects, in which the collector would run all the time and use a tenth of the processor or more. It changes nothing if the
// operator sets GOGC.
func collectLess(ctx context.Context) {
	if os.Getenv("GOGC") == "" {
		setPercent(ctx, 0)
	}
}

// setPercent sets the percentage for what is live now, and does so again after each collection. last is what it set last.
func setPercent(ctx context.Context, last int) {
	if ctx.Err() != nil {
		return
	}
	counted := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/gc/scan/stack:bytes"}, {Name: "/gc/scan/globals:bytes"}}
	metrics.Read(counted)
	var live uint64
	for _, c := range counted {
		live += c.Value.Uint64()
	}
	// A change stops the program for a moment, so small ones are left out.
	if percent := gcPercent(live); percent < last*9/10 || percent > last*11/10 {
		debug.SetGCPercent(percent)
		last = percent
	}
	type collected struct{ _ *int } // the next collection finds it unused. Without a pointer, it could share its memory
	runtime.AddCleanup(new(collected), func(last int) { setPercent(ctx, last) }, last)
}

// gcPercent returns by how many percent of live the heap may grow: by as many bytes, and 56 MiB more. live counts what the last
// collection kept, stacks and globals, as [debug.SetGCPercent] does. A constant would let the heap grow too much when thousands of
// connections are open.
func gcPercent(live uint64) int {
	const spare, least = 56 << 20, 4 << 20 // least is the smallest heap that Go collects
	return int(100 + 100*spare/max(live, least))
}

package main

import (
	"context"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"time"

	"github.com/brevet-dev/brevet/internal/wait"
)

// collectLess makes the garbage collector run less often until ctx ends. It is for processes that serve many calls with few live
// objects, in which the collector would run all the time and use a tenth of the processor or more. It changes nothing if the
// operator sets GOGC.
func collectLess(ctx context.Context) {
	if os.Getenv("GOGC") != "" {
		return
	}
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	var last int
	for next := true; next; next = wait.For(ctx, time.Second) {
		metrics.Read(live)
		// A change stops the program for a moment, so small ones are left out.
		if percent := gcPercent(live[0].Value.Uint64()); percent < last*9/10 || percent > last*11/10 {
			debug.SetGCPercent(percent)
			last = percent
		}
	}
}

// gcPercent returns for how many bytes in live memory the heap may grow by how many, in percent (see [debug.SetGCPercent]): by as many
// and 56 MiB. A constant would let the heap grow too much when thousands of connections are open.
func gcPercent(live uint64) int {
	const spare, least = 56 << 20, 4 << 20 // least is the smallest heap that Go collects
	return int(100 + 100*spare/max(live, least))
}

package broker_test

import (
	"testing"
	"time"

	"github.com/brevet-dev/brevet/broker"
)

func TestRatesQueryIsSplitIntoEqualSteps(t *testing.T) {
	now := time.Date(2026, 5, 1, 12, 34, 56, 0, time.UTC)
	for _, tc := range []struct {
		name        string
		since, step time.Duration
		want        int
		first, last string
	}{
		{"an hour", time.Hour, time.Minute, 60, "11:35", "12:34"},
		{"a day", 24 * time.Hour, 30 * time.Minute, 48, "13:00", "12:30"},
		{"less than a step", time.Second, time.Minute, 1, "12:34", "12:34"},
		{"not a whole number", 90 * time.Second, time.Minute, 2, "12:33", "12:34"},
	} {
		got := broker.RatesQuery{Since: now.Add(-tc.since), Until: now, Step: tc.step}.Starts()
		if len(got) != tc.want || got[0].Format("15:04") != tc.first || got[len(got)-1].Format("15:04") != tc.last {
			t.Errorf("%s: got %d from %s to %s, want %d from %s to %s", tc.name, len(got), got[0], got[len(got)-1], tc.want, tc.first, tc.last)
		}
		for i, start := range got[1:] {
			if start.Sub(got[i]) != tc.step {
				t.Errorf("%s: got %s after %s", tc.name, start, got[i])
			}
		}
	}
	if got := (broker.RatesQuery{Since: now, Until: now, Step: time.Minute}).Starts(); got != nil {
		t.Errorf("no time at all: got %s", got)
	}
}

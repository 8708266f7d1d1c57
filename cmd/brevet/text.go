package main

import (
	"fmt"
	"strings"
	"time"
)

// plural returns a count with its noun: "1 entry", "2 entries".
func plural[N int | int64](n N, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprint(n) + " " + many
}

func seconds(n int64) time.Duration { return time.Duration(n) * time.Second }

// spell writes a duration without its zero units, such as 5m instead of 5m0s.
func spell(d time.Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

// timeLeft returns the time until t in whole seconds, or 0s if t is past.
func timeLeft(t time.Time) string { return spell(max(0, time.Until(t)).Round(time.Second)) }

// ttlRange describes the TTLs of a scope, such as "5m, at most 1h".
func ttlRange(byDefault, most time.Duration) string {
	return spell(byDefault) + ", at most " + spell(most)
}

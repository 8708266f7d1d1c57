package console

import (
	"encoding/json"
	"fmt"
	"html/template"
	"strings"
	"time"

	"github.com/brevet-dev/brevet/internal/safetext"
	"github.com/brevet-dev/brevet/scopes/diff"
)

// functions returns the functions for templates.
func (c *Console) functions() template.FuncMap {
	return template.FuncMap{
		"static":   c.static.address,
		"inert":    safetext.Text,
		"pieces":   safetext.Pieces,
		"utc":      utc,
		"iso":      iso,
		"when":     func(t time.Time) template.HTML { return when(t, c.cfg.Now()) },
		"lasting":  lasting,
		"params":   paramsOf,
		"short":    short,
		"list":     func(of ...string) []string { return of },
		"mixes":    safetext.MixesAlphabets,
		"prose":    prose,
		"reach":    func(r diff.Reach) string { return reaches[r] },
		"shiftsof": shiftsOf,
		"textdiff": textDiff,
		"these":    func(of ...any) []any { return of },
	}
}

func utc(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format("2006-01-02 15:04:05 UTC")
}

func iso(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// when shows a time: relative to now, with the UTC time on hover. The styles show both in print, and on the pages that are
// evidence. A script keeps the relative time current.
func when(t, now time.Time) template.HTML {
	if t.IsZero() {
		return "never"
	}
	//nolint:gosec // every part is a formatted time
	return template.HTML(`<time datetime="` + iso(t) + `" title="` + utc(t) + `">` + relative(t, now) + `</time>`)
}

// relative describes a time relative to now, such as "3 min ago" or "in 1 h 20 min". It rounds down.
func relative(t, now time.Time) string {
	seconds := int64(t.Sub(now) / time.Second)
	switch {
	case seconds < 0:
		return spell(-seconds, false) + " ago"
	case seconds > 0:
		return "in " + spell(seconds, true)
	}
	return "now"
}

// spell formats a number of seconds with its largest unit. If exact is set, minutes follow hours.
func spell(seconds int64, exact bool) string {
	const minute, hour, day = 60, 60 * 60, 24 * 60 * 60
	switch minutes := seconds % hour / minute; {
	case seconds < minute:
		return fmt.Sprintf("%d s", seconds)
	case seconds < hour:
		return fmt.Sprintf("%d min", minutes)
	case seconds < day && exact && minutes > 0:
		return fmt.Sprintf("%d h %d min", seconds/hour, minutes)
	case seconds < day:
		return fmt.Sprintf("%d h", seconds/hour)
	case seconds < 2*day:
		return "1 day"
	}
	return fmt.Sprintf("%d days", seconds/day)
}

func ago(t, now time.Time) string {
	if t.IsZero() {
		return "never"
	}
	return relative(t, now)
}

// lasting formats a duration with at most its two largest units.
func lasting(d time.Duration) string {
	d = d.Round(time.Second)
	units := []struct {
		length time.Duration
		name   string
	}{{24 * time.Hour, "d"}, {time.Hour, "h"}, {time.Minute, "m"}, {time.Second, "s"}}
	for i, u := range units {
		n := d / u.length
		if n == 0 {
			continue
		}
		text := fmt.Sprintf("%d%s", n, u.name)
		if i+1 < len(units) {
			if rest := d % u.length / units[i+1].length; rest > 0 {
				text += fmt.Sprintf(" %d%s", rest, units[i+1].name)
			}
		}
		return text
	}
	return "0s"
}

// param is one parameter of a request.
type param struct{ Name, Value string }

func paramsOf(params map[string]any) []param {
	var all []param
	for _, name := range sortedKeys(params) {
		text, ok := params[name].(string)
		if !ok {
			data, err := json.Marshal(params[name])
			if err != nil {
				continue // a value decoded from JSON can be encoded
			}
			text = string(data)
		}
		all = append(all, param{name, text})
	}
	return all
}

// short truncates a text that is longer than most characters.
func short(text string, most int) string {
	if runes := []rune(text); len(runes) > most {
		return strings.TrimSpace(string(runes[:most-1])) + "…"
	}
	return text
}

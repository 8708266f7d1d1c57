package console

import (
	"encoding/json"
	"fmt"
	"html/template"
	"strings"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/safetext"
	"github.com/brevet-dev/brevet/scopes"
)

// functions returns the functions for templates.
func (c *Console) functions() template.FuncMap {
	return template.FuncMap{
		"static":   c.static.address,
		"inert":    safetext.Text,
		"pieces":   safetext.Pieces,
		"utc":      utc,
		"iso":      func(t time.Time) string { return t.UTC().Format(time.RFC3339) },
		"left":     func(t time.Time) string { return left(t, c.cfg.Now()) },
		"ago":      func(t time.Time) string { return ago(t, c.cfg.Now()) },
		"lasting":  lasting,
		"params":   paramsOf,
		"short":    short,
		"list":     func(of ...string) []string { return of },
		"mixes":    safetext.MixesAlphabets,
		"prose":    prose,
		"reach":    func(r scopes.Reach) string { return reaches[r] },
		"outcome":  func(s broker.CatalogueState) string { return outcomes[s] },
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

func left(t, now time.Time) string {
	if !t.After(now) {
		return "expired"
	}
	return "in " + lasting(t.Sub(now))
}

func ago(t, now time.Time) string {
	if t.IsZero() {
		return "never"
	}
	return lasting(max(0, now.Sub(t))) + " ago"
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

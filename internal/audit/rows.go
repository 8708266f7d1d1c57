package audit

import (
	"cmp"
	stdjson "encoding/json"
	"fmt"
	"math/big"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// issuance returns the row of issuances that an entry creates, with its initial values.
func (b *body) issuance(index int64) []string {
	params := b.Request.Params
	if b.Decision.Params != nil {
		params = b.Decision.Params
	}
	clamps := make([]string, len(b.Decision.Clamps))
	for i, c := range b.Decision.Clamps {
		clamps[i] = c.Bound
	}
	group, quorum, glass, shown, asked := Null, Null, Null, Null, Null
	if a := b.Decision.Approval; a != nil {
		group, quorum, glass, shown = a.Group, strconv.FormatInt(a.Quorum, 10), pointed(a.BreakGlass), pointed(a.Canonical)
	}
	if b.Approves != nil {
		asked = b.Approves.Request
	}
	onBehalfOf, userGroups := b.onBehalfOf(), Null
	if b.User != nil {
		userGroups = Array(b.User.Groups)
	}
	var i intent
	if b.Intent != nil {
		i = *b.Intent
	}
	place := Null
	if n := i.StatusList.Index; n != nil {
		place = strconv.FormatInt(*n, 10)
	}
	return append([]string{
		b.ID, strconv.FormatInt(index, 10), b.Time, b.Subject.TrustDomain, b.Subject.SPIFFEID, b.Subject.SVID,
		b.Subject.Thumbprint, b.Request.Task, b.Request.Scope, b.Decision.Authority, b.Decision.Resource, string(params),
		b.Request.Reason, strconv.FormatInt(b.Request.TTL, 10), strconv.FormatInt(b.Decision.TTL, 10), b.Decision.Outcome,
		b.Decision.Code, b.Decision.Explanation, Array(b.Decision.Policies), Array(clamps), b.Decision.Catalogue,
		pointed(b.Expires), group, quorum, glass, cmp.Or(i.Kind, Null), pointed(i.Audience), pointed(i.KeyID), pointed(i.ClaimsDigest),
		cmp.Or(i.Grant.Path, Null), strconv.FormatBool(i.Grant.Leased), strconv.FormatBool(i.Grant.Static), strconv.FormatBool(i.OneShot),
		b.Request.Digest, shown, asked, pointed(b.Request.JKT), pointed(b.Parent), pointed(i.StatusList.ID), place,
		onBehalfOf, userGroups, b.context(),
	}, b.begun()...)
}

// context returns the request context.
func (b *body) context() string {
	members := map[string]jsontext.Value{}
	if len(b.Request.Others) > 0 {
		if err := json.Unmarshal(b.Request.Others, &members); err != nil {
			return Null // no row has this
		}
	}
	members["task"], _ = jsontext.AppendQuote(nil, b.Request.Task) // what is not UTF-8 becomes so, as in the row
	text, err := json.Marshal(members, json.Deterministic(true))
	if err != nil {
		return Null
	}
	return string(text)
}

// onBehalfOf returns the id of the person on whose behalf the request was made, or Null.
func (b *body) onBehalfOf() string {
	if b.User == nil {
		return Null
	}
	return b.User.ID
}

// begun returns the initial values of the columns that can change.
func (b *body) begun() []string {
	return []string{
		b.Status, Null, b.Time, Null, pointed(b.Request.IdempotencyKey), Null, Null, Null, Null, "0", "0", Null, Null,
	}
}

// Array returns the text of a row's value that is an array.
func Array(values []string) string {
	text := []byte{'['}
	for i, v := range values {
		if i > 0 {
			text = append(text, ',')
		}
		text, _ = jsontext.AppendQuote(text, v) // what is not UTF-8 becomes so, on both sides
	}
	return string(append(text, ']'))
}

// differ returns a finding for each value that differs from what the entries imply. The values begin at column first.
func (t *Table) differ(index int64, want, got []string, first int) (found []Finding) {
	for i, w := range want {
		column := t.Columns[first+i]
		if got[i] == w || same(column, w, got[i]) {
			continue
		}
		found = append(found, Finding{
			Code: ProjectionDiffers, Index: index, Where: t.Name + "." + column,
			What: fmt.Sprintf("the row of %s has %s, its entries say %s", t.name(want, first), show(got[i]), show(w)),
		})
	}
	return found
}

// name returns a row's key for messages. Values that begin after the key have no name.
func (t *Table) name(values []string, first int) string {
	if first > 0 {
		return "the request"
	}
	return show(strings.Join(values[:t.Key], " "))
}

// same reports whether two different texts mean the same value.
func same(column, a, b string) bool {
	switch column {
	case "params", "context": // jsonb has its own spelling of values
		spelt := jsontext.Value(b)
		if spelt.Canonicalize(jsontext.CanonicalizeRawInts(false)) == nil && string(spelt) == a {
			return true
		}
		was, ok := decode(a)
		is, okToo := decode(b)
		return ok && okToo && reflect.DeepEqual(was, is)
	case "time", "expires_at", "status_time", "ends_at", "since", "until", "said_at", "last_used_at", "removed_at":
		was, err := time.Parse(time.RFC3339Nano, a)
		is, errToo := time.Parse(time.RFC3339Nano, b)
		return err == nil && errToo == nil && was.Equal(is)
	}
	return false
}

func decode(text string) (value any, ok bool) {
	d := stdjson.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	err := d.Decode(&value)
	return exact(value), err == nil
}

// exact spells every number the same way.
func exact(value any) any {
	switch v := value.(type) {
	case stdjson.Number:
		if r, ok := new(big.Rat).SetString(v.String()); ok {
			return stdjson.Number(r.RatString())
		}
	case []any:
		for i := range v {
			v[i] = exact(v[i])
		}
	case map[string]any:
		for name := range v {
			v[name] = exact(v[name])
		}
	}
	return value
}

// show quotes a value for messages. Sandboxes wrote much of the text.
func show(text string) string {
	if text == Null {
		return "nothing"
	}
	runes := []rune(text)
	if len(runes) > 80 {
		runes = append(runes[:79], '…')
	}
	return strconv.QuoteToGraphic(string(runes))
}

// projection holds the rows that the entries imply for a table, by their key.
type projection struct {
	table *Table
	want  map[string]wanted
}

// wanted is a row and the entry that implies it.
type wanted struct {
	values []string
	index  int64
}

func project(t *Table) *projection { return &projection{t, map[string]wanted{}} }

func (p *projection) key(values []string) string { return strings.Join(values[:p.table.Key], "\x00") }

// set replaces the row of the same key.
func (p *projection) set(index int64, values ...string) {
	p.want[p.key(values)] = wanted{values, index}
}

func (p *projection) get(key ...string) (values []string, ok bool) {
	w, ok := p.want[strings.Join(key, "\x00")]
	return w.values, ok
}

// compare compares a row with the expected one, which it removes.
func (p *projection) compare(row Row, found *findings) {
	key := p.key(row.Values)
	w, ok := p.want[key]
	if !ok {
		found.add(Finding{
			Code: ProjectionExtra, Index: row.index(), Where: p.table.Name,
			What: "no entry explains the row of " + p.table.name(row.Values, 0),
		})
		return
	}
	found.add(p.table.differ(w.index, w.values, row.Values, 0)...)
	delete(p.want, key)
}

// rest reports the expected rows that are missing.
func (p *projection) rest(found *findings) {
	for _, w := range sortedBy(p.want, func(w wanted) int64 { return w.index }) {
		found.add(Finding{
			Code: ProjectionMissing, Index: w.index, Where: p.table.Name,
			What: "the row of " + p.table.name(w.values, 0) + " is missing",
		})
	}
}

// index returns the index of the entry that a row names, or -1 if it names none.
func (r Row) index() int64 {
	if r.Table.index >= 0 {
		if n, err := strconv.ParseInt(r.Values[r.Table.index], 10, 64); err == nil {
			return n
		}
	}
	return -1
}

func sortedBy[K comparable, V any](all map[K]V, by func(V) int64) []V {
	values := make([]V, 0, len(all))
	for _, v := range all {
		values = append(values, v)
	}
	slices.SortFunc(values, func(a, b V) int { return int(by(a) - by(b)) })
	return values
}

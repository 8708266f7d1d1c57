package scopes

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"
	"go.yaml.in/yaml/v4/plugin/loaderlimits"
)

// maxYAMLDepth is far more than a scope needs (seven levels).
const maxYAMLDepth = 16

// reader converts YAML nodes to values and records each mistake with its line. It walks nodes instead of decoding into
// structs, because a person who wrote a wrong key needs its line and the list of valid keys. It rejects unknown and
// duplicate keys, anchors, aliases, merge keys and tags, so that nothing in a catalogue needs guessing.
type reader struct {
	file     string
	top      string // the single key of the file
	where    string // "scope github.issues.read: ", once the name is known
	problems *Problems
}

func (r *reader) at(n *yaml.Node, format string, args ...any) {
	r.problems.add(r.file, n.Line, "%s%s", r.where, fmt.Sprintf(format, args...))
}

// items parses a file and returns what is listed under its single key.
func (r *reader) items(data []byte) []*yaml.Node {
	var doc yaml.Node
	limits := yaml.WithPlugin(loaderlimits.New(loaderlimits.DepthValue(maxYAMLDepth)))
	if err := yaml.Load(data, &doc, limits); err != nil {
		r.syntax(err)
		return nil
	}
	if doc.Kind != yaml.DocumentNode || len(doc.Content) != 1 {
		r.problems.add(r.file, 0, "contains no YAML document; begin it with %s:", r.top)
		return nil
	}
	root, before := doc.Content[0], len(*r.problems)
	if r.plain(root); len(*r.problems) > before {
		return nil
	}
	fields := r.mapping(root, "file", r.top)
	if fields == nil {
		return nil
	}
	if fields[r.top] == nil {
		r.at(root, "%s is missing; list the %s under it", r.top, r.top)
		return nil
	}
	return r.list(fields[r.top], r.top)
}

// syntax reports the YAML library's errors, without the library's own prefix.
func (r *reader) syntax(err error) {
	if many, ok := errors.AsType[*yaml.LoadErrors](err); ok {
		for _, e := range many.Errors {
			what := e.Message
			switch {
			case strings.Contains(what, "found multiple"):
				what = "one document per file; move the part after --- to another file"
			case strings.Contains(what, "no documents"):
				what = "the file is empty; begin it with " + r.top + ":"
			}
			r.problems.add(r.file, e.Mark.Line, "not valid YAML: %s", what)
		}
		return
	}
	if one, ok := errors.AsType[*yaml.LoadError](err); ok {
		what := one.Message
		if one.ContextMsg != "" {
			what = one.ContextMsg + ": " + what
		}
		r.problems.add(r.file, one.Mark.Line, "not valid YAML: %s", what)
		return
	}
	r.problems.add(r.file, 0, "not valid YAML: %v", err)
}

// plain rejects every construct whose meaning differs from its text.
func (r *reader) plain(n *yaml.Node) {
	if n.Kind == yaml.AliasNode || n.Anchor != "" {
		r.at(n, "anchors and aliases are not allowed; write the value out")
		return
	}
	if n.Style&yaml.TaggedStyle != 0 {
		r.at(n, "tags such as %s are not allowed; remove it", n.Tag)
		return
	}
	for _, child := range n.Content {
		r.plain(child)
	}
}

// mapping returns the values of n by key and reports unknown keys. It returns nil if n is not a mapping.
func (r *reader) mapping(n *yaml.Node, what string, known ...string) map[string]*yaml.Node {
	entries := r.entries(n, what)
	if entries != nil {
		r.onlyKeys(n, what, known)
	}
	return entries
}

// onlyKeys reports every key of the mapping n that is not in known.
func (r *reader) onlyKeys(n *yaml.Node, what string, known []string) {
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := n.Content[i]
		if plainKey(key) && !slices.Contains(known, key.Value) {
			r.at(key, "%s: unknown key %q; the keys are %s", what, key.Value, strings.Join(known, ", "))
		}
	}
}

func plainKey(key *yaml.Node) bool { return key.Kind == yaml.ScalarNode && key.ShortTag() != "!!merge" }

// entries is mapping for keys that the admin chooses.
func (r *reader) entries(n *yaml.Node, what string) map[string]*yaml.Node {
	if n.Kind != yaml.MappingNode {
		r.at(n, "%s must be a mapping (key: value)", what)
		return nil
	}
	out := make(map[string]*yaml.Node, len(n.Content)/2)
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		if !plainKey(key) {
			r.at(key, "%s: keys must be plain words", what)
			continue
		}
		if _, dup := out[key.Value]; dup {
			r.at(key, "%s: key %q is listed twice; remove one", what, key.Value)
			continue
		}
		out[key.Value] = value
	}
	return out
}

// list returns the items of a sequence, or none if n is not a sequence.
func (r *reader) list(n *yaml.Node, what string) []*yaml.Node {
	if n.Kind != yaml.SequenceNode {
		r.at(n, "%s must be a list", what)
		return nil
	}
	return n.Content
}

// listOf returns the items of a sequence that must have 1 to most items.
func (r *reader) listOf(n *yaml.Node, what string, most int, of string) []*yaml.Node {
	items := r.list(n, what)
	if n.Kind == yaml.SequenceNode && (len(items) == 0 || len(items) > most) {
		r.at(n, "%s must list 1 to %d %s", what, most, of)
		return nil
	}
	return items
}

// text returns a string. It does not convert numbers and booleans to a string, because YAML has several spellings of
// each.
func (r *reader) text(n *yaml.Node, what string) (string, bool) {
	if n == nil {
		return "", false
	}
	if n.Kind != yaml.ScalarNode || n.ShortTag() != "!!str" {
		r.at(n, "%s must be text; put it in quotes", what)
		return "", false
	}
	return n.Value, true
}

// flag returns a boolean; false if it is absent.
func (r *reader) flag(n *yaml.Node, what string) bool {
	if n == nil {
		return false
	}
	if n.Kind != yaml.ScalarNode || n.ShortTag() != "!!bool" {
		r.at(n, "%s must be true or false", what)
		return false
	}
	return strings.EqualFold(n.Value, "true")
}

// oneOf returns one of several words; the first one if it is absent.
func (r *reader) oneOf(n *yaml.Node, what string, words ...string) string {
	if n == nil {
		return words[0]
	}
	text, ok := r.text(n, what)
	if ok && !slices.Contains(words, text) {
		r.at(n, "%s %q is unknown; choose %s", what, text, either(words))
	}
	return text
}

// either lists words as a choice: a, b or c.
func either(words []string) string {
	last := len(words) - 1
	if last < 1 {
		return strings.Join(words, "")
	}
	return strings.Join(words[:last], ", ") + " or " + words[last]
}

func (r *reader) integer(n *yaml.Node, what string, lo, hi int64) (int64, bool) {
	if n == nil {
		return 0, false
	}
	v, err := strconv.ParseInt(n.Value, 10, 64)
	if n.Kind != yaml.ScalarNode || n.ShortTag() != "!!int" || err != nil || v < lo || v > hi {
		r.at(n, "%s must be a whole number from %d to %d", what, lo, hi)
		return 0, false
	}
	return v, true
}

// duration returns a duration of whole seconds, from lo to maxDuration.
func (r *reader) duration(n *yaml.Node, what string, lo time.Duration) (time.Duration, bool) {
	if n == nil {
		return 0, false
	}
	d, err := time.ParseDuration(n.Value)
	if n.Kind != yaml.ScalarNode || err != nil || d < lo || d > maxDuration || d%time.Second != 0 {
		r.at(n, "%s must be whole seconds from %s to %s, such as 90s or 5m", what, FormatDuration(lo), FormatDuration(maxDuration))
		return 0, false
	}
	return d, true
}

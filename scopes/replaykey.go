package scopes

import (
	"encoding/binary"
	"encoding/json"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/cedar-policy/cedar-go/x/exp/ast"
)

// keyBuffer writes the key that identical recorded requests share. Its buffers are reused for each key.
type keyBuffer struct {
	data  []byte
	names []string
}

// of returns the key, which is valid until the next call, and whether it is complete. It is incomplete if a value has a
// type that no JSON decoder produces. Every part has a fixed length or states its length, so different requests never
// share a key.
func (b *keyBuffer) of(rec Recorded, v *view, who Subject) ([]byte, bool) {
	b.data = b.data[:0]
	b.flag(rec.Bound)
	b.flag(rec.Proved)
	b.flag(rec.Reason == ReasonApproved)
	b.flag(rec.Reason == ReasonBreakGlass)
	b.text(rec.SPIFFEID)
	b.text(rec.Scope)
	b.number(int64(rec.TTL))
	if v.def != nil && v.def.scope.Credential.endsWithSVID(who) {
		b.number(int64(who.Expires.Sub(rec.Time).Truncate(time.Second)))
	}
	b.user(rec)
	// A malformed task makes the request invalid, whether or not a policy reads it.
	b.flag(taskSyntax.MatchString(rec.Task))
	if v.readTask {
		b.text(rec.Task)
	}
	b.names = b.names[:0]
	for name := range rec.Params {
		b.names = append(b.names, name)
	}
	slices.Sort(b.names)
	for _, name := range b.names {
		b.text(name)
		if !b.value(rec.Params[name]) {
			return nil, false
		}
	}
	return b.data, true
}

func (b *keyBuffer) user(rec Recorded) {
	b.flag(rec.User != nil)
	if rec.User == nil {
		return
	}
	b.text(rec.User.ID)
	b.number(int64(len(rec.User.Groups)))
	for _, group := range rec.User.Groups {
		b.text(group)
	}
	b.flag(rec.User.Until.IsZero())
	if !rec.User.Until.IsZero() {
		b.number(int64(rec.User.Until.Sub(rec.Time).Truncate(time.Second)))
	}
}

func (b *keyBuffer) value(value any) bool {
	switch v := value.(type) {
	case string:
		b.data = append(b.data, 's')
		b.text(v)
	case bool:
		b.data = append(b.data, 'b')
		b.flag(v)
	case json.Number:
		b.data = append(b.data, 'j')
		b.text(string(v))
	case float64:
		b.data = append(b.data, 'f')
		b.data = binary.BigEndian.AppendUint64(b.data, math.Float64bits(v))
	case int64:
		b.data = append(b.data, 'i')
		b.number(v)
	case int:
		b.data = append(b.data, 'i')
		b.number(int64(v))
	default:
		return false
	}
	return true
}

func (b *keyBuffer) flag(v bool) { b.data = strconv.AppendBool(b.data, v) }

func (b *keyBuffer) number(n int64) { b.data = binary.AppendVarint(b.data, n) }

func (b *keyBuffer) text(s string) {
	b.data = binary.AppendUvarint(b.data, uint64(len(s)))
	b.data = append(b.data, s...)
}

// readsTask reports whether the policy may depend on context.task. It does not if it uses context for other fields only.
func (p policy) readsTask() bool {
	used, elsewhere := 0, 0
	for _, condition := range (*ast.Policy)(p.cedar.AST()).Conditions {
		ast.Inspect(ast.NewNode(condition.Body), func(n ast.IsNode) bool {
			if isContext(n) {
				used++
			}
			switch field := n.(type) {
			case ast.NodeTypeAccess:
				if isContext(field.Arg) && field.Value != "task" {
					elsewhere++
				}
			case ast.NodeTypeHas:
				if isContext(field.Arg) {
					elsewhere++ // the task is always set
				}
			}
			return true
		})
	}
	return used != elsewhere
}

package audit

import "testing"

// TestVerifierComparesTheWholeRequestContext checks that the expected row of an entry has every member of the request context,
// including one that this version does not know.
func TestVerifierComparesTheWholeRequestContext(t *testing.T) {
	for _, tc := range []struct {
		name, entry, row string
		want             bool
	}{
		{"the task", `{"request":{"scope":"s","reason":"r","task":"a"}}`, `{"task": "a"}`, true},
		{"another task", `{"request":{"task":"a"}}`, `{"task": "b"}`, false},
		{"another member", `{"request":{"purpose":"x","task":"a"}}`, `{"task": "a", "purpose": "x"}`, true},
		{"a member that the row lacks", `{"request":{"purpose":"x","task":"a"}}`, `{"task": "a"}`, false},
		{"a member that the entry lacks", `{"request":{"task":"a"}}`, `{"task": "a", "purpose": "x"}`, false},
		{"members of a member", `{"request":{"Others":{"purpose":"x"},"task":"a"}}`, `{"task": "a", "purpose": "x"}`, false},
		{"a name in other letters", `{"request":{"task":"a","TASK":"b"}}`, `{"task": "b"}`, false},
	} {
		p := parseEntry(Entry{Body: []byte(tc.entry)})
		want := p.body.context()
		if got := want == tc.row || same("context", want, tc.row); got != tc.want {
			t.Errorf("%s: the entry implies %s, and the row %s agrees: %v", tc.name, want, tc.row, got)
		}
	}
}

// TestApprovalCoversOnlyItsRequestContext checks that a vote for a request does not cover one with another member in its context.
func TestApprovalCoversOnlyItsRequestContext(t *testing.T) {
	asked := func(entry string) *asked {
		p := parseEntry(Entry{Body: []byte(entry)})
		return askedOf(p.body)
	}
	plain := asked(`{"request":{"task":"a"}}`)
	if !plain.covers(asked(`{"request":{"task":"a"}}`)) || plain.covers(asked(`{"request":{"task":"a","purpose":"x"}}`)) {
		t.Error("want the same context covered, and no other")
	}
}

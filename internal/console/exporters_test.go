package console

import "testing"

func TestExportsAtOnce(t *testing.T) {
	var e exporters
	for range exportsAtOnce {
		if !e.enter("dave") {
			t.Fatal("an export is refused that a person can have beside another")
		}
	}
	if e.enter("dave") {
		t.Error("a third export of one person is begun")
	}
	if !e.enter("carol") {
		t.Error("somebody else is refused")
	}
	e.leave("dave")
	if !e.enter("dave") {
		t.Error("once one is done another is refused")
	}
	for range exportsAtOnce {
		e.leave("dave")
	}
	e.leave("carol")
	if len(e.of) != 0 {
		t.Errorf("got %v when all are done, want nobody", e.of)
	}
}

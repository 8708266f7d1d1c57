package console

import "testing"

func TestExportsAtOnce(t *testing.T) {
	var e exporters
	if !e.enter("dave") || !e.enter("dave") {
		t.Fatal("two exports of one person are refused")
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

package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/brevet-dev/brevet/openapi"
)

// TestPasskeyApprovalIsRefusedOnTheCommandLine checks that an approval that needs a passkey is refused on the command line before
// anything is sent. The error says where to sign.
func TestPasskeyApprovalIsRefusedOnTheCommandLine(t *testing.T) {
	one := openapi.ApprovalCase{ID: "r1", Canonical: `{"scope":"a.b","passkey":"required","group":"oncall","quorum":1}`}
	for _, verdict := range []openapi.Verdict{openapi.VerdictApprove, openapi.VerdictBreakGlass} {
		if err := unsignable(one, verdict); err == nil || !strings.Contains(err.Error(), "open the request in the console") {
			t.Errorf("%s: got %v", verdict, err)
		}
	}
	if err := unsignable(one, openapi.VerdictDeny); err != nil {
		t.Errorf("a no: %v", err)
	}
	if err := unsignable(openapi.ApprovalCase{Canonical: `{"scope":"a.b"}`}, openapi.VerdictApprove); err != nil {
		t.Errorf("without the rule: %v", err)
	}
	var out bytes.Buffer
	if err := printCase(&out, one); err != nil || !strings.Contains(out.String(), "1 of oncall, signed by a passkey") {
		t.Errorf("got %s, %v", out.String(), err)
	}
}

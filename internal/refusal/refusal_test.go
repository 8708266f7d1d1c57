package refusal_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/brevet-dev/brevet/internal/refusal"
)

func TestReasonAndPackageOfARefusal(t *testing.T) {
	invalid := refusal.New("people", "id_token_invalid", "the ID token is invalid")
	expired := refusal.Of(invalid, "people", "id_token_expired", "the ID token has expired")
	wrapped := fmt.Errorf("login: %w", expired)
	if !errors.Is(wrapped, invalid) || !errors.Is(wrapped, expired) || errors.Is(invalid, expired) {
		t.Error("a refusal is not of its kind, or its kind is of the refusal")
	}
	for _, tc := range []struct {
		err  error
		want string
		by   bool
	}{{nil, "", false}, {invalid, "id_token_invalid", true}, {wrapped, "id_token_expired", true}, {errors.New("x"), "internal", false}} {
		if got := refusal.Reason(tc.err); got != tc.want || refusal.By("people", tc.err) != tc.by || refusal.By("dpop", tc.err) {
			t.Errorf("%v: got %q, want %q by people alone: %v", tc.err, got, tc.want, tc.by)
		}
	}
}

package login_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/brevet-dev/brevet/internal/login"
	"golang.org/x/oauth2"
)

func TestLoginErrorsAreExplained(t *testing.T) {
	refused := func(code string) error {
		return fmt.Errorf("x: %w", &oauth2.RetrieveError{ErrorCode: code, ErrorDescription: "\x1b[2J"})
	}
	for _, tc := range []struct {
		err  error
		want string
	}{
		{context.Canceled, "context canceled"},
		{context.DeadlineExceeded, "the login timed out: run brevet login again"},
		{refused("expired_token"), "the login timed out: run brevet login again"},
		{refused("access_denied"), "the login was declined"},
		{refused("invalid_client"), `logging in: the provider refused: invalid_client \u001b[2J`},
		{errors.New("no route"), "logging in: no route"},
	} {
		if got := login.Failed(tc.err).Error(); got != tc.want {
			t.Errorf("%v: got %q, want %q", tc.err, got, tc.want)
		}
	}
}

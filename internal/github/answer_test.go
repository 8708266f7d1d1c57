package github_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/internal/github"
	"github.com/brevet-dev/brevet/internal/secret"
)

const canary = "ghs_CANARYCANARYCANARYCANARYCANARYCANA00"

// answering calls a server that answers what no GitHub does.
func answering(t *testing.T, handler http.HandlerFunc) (*github.Client, github.App) {
	t.Helper()
	server := httptest.NewTLSServer(handler)
	t.Cleanup(server.Close)
	return github.New(server.Client().Transport, time.Now), github.App{ClientID: clientID, URL: parse(t, server.URL)}
}

func made(expires time.Time, rest string) string {
	return fmt.Sprintf(`{"token":%q,"expires_at":%q,"repository_selection":"selected","permissions":{"issues":"read"},"repositories":[{"full_name":"acme/api"}]%s}`,
		canary, expires.UTC().Format(time.RFC3339), rest)
}

var wanted = github.Grant{Installation: 1, Repositories: []string{"acme/api"}, Permissions: map[string]string{"issues": "read"}}

// A token that can be read in an answer has to be ended, even if the rest of the answer makes no sense.
func TestAnswersThatMakeNoSense(t *testing.T) {
	t.Parallel()
	in := time.Now().Add(time.Hour)
	for name, tc := range map[string]struct {
		body  string
		other bool // the error has the token
	}{
		"nothing":             {"", false},
		"no JSON":             {"<html>" + canary + "</html>", false},
		"an array":            {"[]", false},
		"no token":            {`{"expires_at":"2030-01-01T00:00:00Z"}`, false},
		"empty token":         {strings.ReplaceAll(made(in, ""), canary, ""), false},
		"token with controls": {strings.ReplaceAll(made(in, ""), canary, `a\u001b[2Jb`), false},
		"token of letters":    {strings.ReplaceAll(made(in, ""), canary, "tökën"), false},
		"token of 5 KB":       {strings.ReplaceAll(made(in, ""), canary, strings.Repeat("a", 5000)), false},
		"two documents":       {made(in, "") + made(in, ""), false},
		"too large":           {made(in, `,"x":"`+strings.Repeat("x", 200<<10)+`"`), false},
		"no expiry":           {strings.Replace(made(in, ""), "expires_at", "expires", 1), true},
		"expiry is no time":   {strings.Replace(made(in, ""), `"expires_at":"`, `"expires_at":"on `, 1), true},
		"no permissions":      {strings.Replace(made(in, ""), "permissions", "x", 1), true},
		"permission is no text": {
			strings.Replace(made(in, ""), `"issues":"read"`, `"issues":{"`+canary+`":1}`, 1), true,
		},
		"repositories without names": {strings.Replace(made(in, ""), "full_name", "name", 1), true},
		"repository with controls":   {strings.Replace(made(in, ""), "acme/api", `acme/api\u001b[2J`, 1), true},
		"token as a repository":      {strings.Replace(made(in, ""), "acme/api", canary, 1), true},
	} {
		client, app := answering(t, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusCreated)
			_, _ = w.Write([]byte(tc.body))
		})
		token, err := client.CreateToken(t.Context(), app, signWith(appKey()), wanted)
		other, isOther := errors.AsType[*github.GrantError](err)
		_, isLost := errors.AsType[*github.LostError](err)
		if isOther != tc.other || isLost == tc.other {
			t.Errorf("%s: got %v (%T)", name, err, err)
		}
		if isOther && (other.Token.Secret.Reveal() != canary || token.Secret.Reveal() != canary || other.Token.Expires.Before(time.Now())) {
			t.Errorf("%s: the error does not have the token", name)
		}
		if text := fmt.Sprintf("%v %+v %#v", err, err, err); strings.Contains(text, canary) || strings.ContainsAny(err.Error(), "\x1b\n") {
			t.Errorf("%s: got %q", name, text)
		}
	}
}

func TestTheDoubleOfTheseTestsCanAnswerWell(t *testing.T) {
	t.Parallel()
	client, app := answering(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write([]byte(made(time.Now().Add(time.Hour), "")))
	})
	if token, err := client.CreateToken(t.Context(), app, signWith(appKey()), wanted); err != nil || token.Secret.Reveal() != canary {
		t.Errorf("got %v", err)
	}
}

// A server may repeat the token or the JWT in its error messages, and may put commands for terminals there.
func TestErrorsHaveNoSecret(t *testing.T) {
	t.Parallel()
	var bearer string
	for _, code := range []int{301, 307, 400, 401, 403, 404, 408, 410, 422, 429, 500, 502, 503} {
		client, app := answering(t, func(w http.ResponseWriter, r *http.Request) {
			bearer = strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
			w.Header().Set("Location", "/elsewhere")
			w.WriteHeader(code)
			_, _ = fmt.Fprintf(w, `{"message":"you sent %s \u001b[2J\u202e %s","documentation_url":%q}`, bearer, strings.Repeat("word ", 100), bearer)
		})
		_, err := client.CreateToken(t.Context(), app, signWith(appKey()), wanted)
		created := bearer
		for i, err := range []error{err, client.DeleteToken(t.Context(), app, secret.New(canary))} {
			if i == 1 && code == 401 {
				continue // the token is dead
			}
			if err == nil {
				t.Errorf("%d: got no error", code)
				continue
			}
			text := fmt.Sprintf("%v %+v %#v", err, err, err)
			for _, part := range append(strings.Split(created, "."), canary, "\x1b", "\u202e") {
				if strings.Contains(text, part) {
					t.Errorf("%d: got %q", code, text)
				}
			}
			if len(err.Error()) > 600 || !strings.Contains(err.Error(), fmt.Sprint(code)) {
				t.Errorf("%d: got %q", code, err)
			}
		}
	}
}

func TestRedirectIsNotFollowed(t *testing.T) {
	t.Parallel()
	calls := 0
	client, app := answering(t, func(w http.ResponseWriter, r *http.Request) {
		calls++
		http.Redirect(w, r, "/app/installations/1/access_tokens?again", http.StatusTemporaryRedirect)
	})
	_, err := client.CreateToken(t.Context(), app, signWith(appKey()), wanted)
	if refused, ok := errors.AsType[*github.RefusedError](err); !ok || !strings.Contains(refused.Advice, "redirects") || calls != 1 {
		t.Errorf("got %v after %d calls", err, calls)
	}
}

// A 401 without GitHub's message comes from a gateway in front of GitHub, and says nothing about the token.
func TestForeign401DoesNotMeanThatTheTokenIsDead(t *testing.T) {
	t.Parallel()
	client, app := answering(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusUnauthorized)
		_, _ = w.Write([]byte("<h1>Log in to the company's network</h1>"))
	})
	err := client.DeleteToken(t.Context(), app, secret.New(canary))
	if _, ok := errors.AsType[*github.LostError](err); !ok {
		t.Errorf("got %v", err)
	}
}

func TestNoProxyIsTakenFromTheEnvironment(t *testing.T) {
	t.Setenv("HTTPS_PROXY", "http://127.0.0.1:1")
	t.Setenv("ALL_PROXY", "http://127.0.0.1:1")
	if github.NewTransport(nil).Proxy != nil {
		t.Error("the transport has a proxy")
	}
}

func TestRetryAfterIsBounded(t *testing.T) {
	t.Parallel()
	for header, want := range map[string]time.Duration{
		"0": time.Second, "-5": time.Second, "1": time.Second, "61": 61 * time.Second, "86400": time.Hour, "99999999999999999999": time.Minute, "soon": time.Minute,
	} {
		client, app := answering(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", header)
			w.WriteHeader(http.StatusForbidden)
		})
		_, err := client.CreateToken(t.Context(), app, signWith(appKey()), wanted)
		if limited, ok := errors.AsType[*github.LimitedError](err); !ok || limited.RetryAfter != want {
			t.Errorf("%s: got %v, want %s", header, err, want)
		}
	}
}

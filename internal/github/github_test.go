package github_test

import (
	"context"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/internal/github"
	"github.com/brevet-dev/brevet/internal/secret"
	"github.com/brevet-dev/brevet/internal/testkit/githubapi"
)

const (
	clientID     = "Iv23liBrevetTest0001"
	installation = 48872301
)

// appKey is one key for all tests: making an RSA key takes long.
var appKey = sync.OnceValue(func() *rsa.PrivateKey {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		panic(err)
	}
	return key
})

// signWith signs as Vault does.
func signWith(key *rsa.PrivateKey) github.Sign {
	return func(_ context.Context, input string) (string, error) {
		sum := sha256.Sum256([]byte(input))
		signature, err := rsa.SignPKCS1v15(rand.Reader, key, crypto.SHA256, sum[:])
		return base64.RawURLEncoding.EncodeToString(signature), err
	}
}

// world is GitHub's double and a client for it.
type world struct {
	hub    *githubapi.Server
	client *github.Client
	app    github.App
	want   github.Grant
}

func start(t *testing.T) world {
	t.Helper()
	t.Parallel()
	hub := githubapi.Start(t, githubapi.Options{
		Apps: []githubapi.App{{
			ID: 1001, ClientID: clientID, Slug: "brevet-test", Keys: []*rsa.PublicKey{&appKey().PublicKey},
			Installations: []githubapi.Installation{
				{
					ID: installation, Owner: "acme", Repositories: []string{"api", "site", "Infra"},
					Permissions: map[string]string{"issues": "write", "contents": "write", "pull_requests": "read"},
				},
				{ID: 7, Owner: "asleep", Repositories: []string{"api"}, Permissions: map[string]string{"issues": "read"}, Suspended: true},
			},
		}},
		Repositories: []string{"acme/private", "other/api"},
	})
	return world{
		hub: hub, client: github.New(github.NewTransport(hub.Roots()), time.Now), app: github.App{ClientID: clientID, URL: parse(t, hub.URL())},
		want: github.Grant{Installation: installation, Repositories: []string{"acme/api"}, Permissions: map[string]string{"issues": "read"}},
	}
}

func parse(t *testing.T, text string) *url.URL {
	t.Helper()
	u, err := url.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

func (w world) create(ctx context.Context) (github.Token, error) {
	return w.client.CreateToken(ctx, w.app, signWith(appKey()), w.want)
}

func (w world) mustCreate(t *testing.T) github.Token {
	t.Helper()
	token, err := w.create(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// get calls GitHub with a token, and returns the status.
func (w world) get(t *testing.T, token secret.Text, path string) int {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, w.hub.URL()+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token.Reveal())
	resp, err := (&http.Client{Transport: github.NewTransport(w.hub.Roots())}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	return resp.StatusCode
}

func TestTokenIsWhatWasAskedFor(t *testing.T) {
	w := start(t)
	w.want.Repositories = []string{"acme/api", "ACME/infra"}
	token := w.mustCreate(t)
	live := w.hub.Live()
	if len(live) != 1 || live[0].Secret != token.Secret.Reveal() || !live[0].Expires.Equal(token.Expires) {
		t.Fatalf("got %d live tokens, want the one that was returned", len(live))
	}
	if got := live[0].Grant; !slices.Equal(got.Repositories, []string{"acme/api", "acme/Infra"}) ||
		!maps.Equal(got.Permissions, map[string]string{"issues": "read", "metadata": "read"}) {
		t.Errorf("got the grant %v", got)
	}
	if left := time.Until(token.Expires); left < 58*time.Minute || left > time.Hour {
		t.Errorf("the token lives for %s, want an hour", left)
	}
	for path, want := range map[string]int{
		"/repos/acme/api/issues": 200, "/repos/acme/infra/issues": 200, "/repos/acme/site/issues": 404,
		"/repos/acme/private/issues": 404, "/repos/other/api/issues": 404, "/repos/acme/api/contents/README.md": 403,
	} {
		if got := w.get(t, token.Secret, path); got != want {
			t.Errorf("%s: got status %d, want %d", path, got, want)
		}
	}
	for _, call := range w.hub.Calls() {
		if call.Problem != "" {
			t.Errorf("GitHub's description does not allow %s %s: %s", call.Method, call.Path, call.Problem)
		}
	}
}

func TestEnterpriseServerIsCalledBelowItsPath(t *testing.T) {
	w := start(t)
	w.app.URL = parse(t, w.hub.EnterpriseURL())
	token := w.mustCreate(t)
	if err := w.client.DeleteToken(t.Context(), w.app, token.Secret); err != nil {
		t.Fatal(err)
	}
	for _, call := range w.hub.Calls() {
		if !strings.HasPrefix(call.Path, "/api/v3/") || call.UserAgent != "brevet" {
			t.Errorf("got a call of %s by %q", call.Path, call.UserAgent)
		}
	}
}

func TestDeletedTokenIsDead(t *testing.T) {
	w := start(t)
	token := w.mustCreate(t)
	if err := w.client.DeleteToken(t.Context(), w.app, token.Secret); err != nil {
		t.Fatal(err)
	}
	if got := w.get(t, token.Secret, "/repos/acme/api/issues"); got != 401 || len(w.hub.Live()) != 0 {
		t.Errorf("got status %d and %d live tokens, want a dead one", got, len(w.hub.Live()))
	}
}

// A client on another replica, or a later one, finds a token that is dead already.
func TestDeletingADeadTokenSucceeds(t *testing.T) {
	w := start(t)
	token := w.mustCreate(t)
	w.hub.Advance(2 * time.Hour)
	other := github.New(github.NewTransport(w.hub.Roots()), time.Now)
	if err := other.DeleteToken(t.Context(), w.app, token.Secret); err != nil {
		t.Errorf("got %v", err)
	}
}

// For some seconds after a token was made, a 401 does not mean that it is dead: not every server of GitHub knows it yet.
func TestYoungTokenIsNotTakenForADeadOne(t *testing.T) {
	w := start(t)
	now := time.Now()
	w.client = github.New(github.NewTransport(w.hub.Roots()), func() time.Time { return now })
	w.hub.Behave(githubapi.Behaviour{Settling: 4 * time.Second})
	token := w.mustCreate(t)
	var lost *github.LostError
	if err := w.client.DeleteToken(t.Context(), w.app, token.Secret); !errors.As(err, &lost) || len(w.hub.Live()) != 1 {
		t.Fatalf("got %v and %d live tokens, want a lost answer", err, len(w.hub.Live()))
	}
	now = now.Add(6 * time.Second)
	w.hub.Advance(6 * time.Second)
	if err := w.client.DeleteToken(t.Context(), w.app, token.Secret); err != nil || len(w.hub.Live()) != 0 {
		t.Errorf("got %v and %d live tokens, want none", err, len(w.hub.Live()))
	}
}

func TestNewerTokenFormatAndUnknownFieldsAreAccepted(t *testing.T) {
	w := start(t)
	w.hub.Behave(githubapi.Behaviour{Stateless: true, UnknownFields: true})
	token := w.mustCreate(t)
	if got := token.Secret.Reveal(); len(got) < 100 || strings.Count(got, ".") != 2 {
		t.Errorf("got a token of %d bytes, want one of the newer format", len(got))
	}
	if err := w.client.DeleteToken(t.Context(), w.app, token.Secret); err != nil {
		t.Error(err)
	}
}

func TestRefusalsMakeNothingAndSayWhatToDo(t *testing.T) {
	stranger, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		change func(*world)
		key    *rsa.PrivateKey
		status int
		says   string
	}{
		"wrong key":           {func(*world) {}, stranger, 401, "key in Vault"},
		"unknown App":         {func(w *world) { w.app.ClientID = "Iv23none" }, nil, 404, "client_id"},
		"clock ahead":         {func(w *world) { w.clock(time.Hour) }, nil, 401, "clock"},
		"clock behind":        {func(w *world) { w.clock(-time.Hour) }, nil, 401, "clock"},
		"no installation":     {func(w *world) { w.want.Installation = 99 }, nil, 404, "installation"},
		"suspended":           {func(w *world) { w.want.Installation = 7 }, nil, 403, "suspended"},
		"other repository":    {func(w *world) { w.want.Repositories = []string{"acme/private"} }, nil, 422, "repository is not in the installation"},
		"no such repository":  {func(w *world) { w.want.Repositories = []string{"acme/api", "acme/none"} }, nil, 422, "repository"},
		"higher permission":   {func(w *world) { w.want.Permissions = map[string]string{"pull_requests": "write"} }, nil, 422, "lacks a permission"},
		"other permission":    {func(w *world) { w.want.Permissions = map[string]string{"actions": "read"} }, nil, 422, "lacks a permission"},
		"no known permission": {func(w *world) { w.want.Permissions = map[string]string{"none": "read"} }, nil, 422, "lacks a permission"},
	} {
		t.Run(name, func(t *testing.T) {
			w := start(t)
			tc.change(&w)
			key := tc.key
			if key == nil {
				key = appKey()
			}
			_, err := w.client.CreateToken(t.Context(), w.app, signWith(key), w.want)
			var refused *github.RefusedError
			if !errors.As(err, &refused) || refused.Status != tc.status || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("got %v, want status %d and %q", err, tc.status, tc.says)
			}
			if len(w.hub.Live()) != 0 {
				t.Error("a token is alive")
			}
		})
	}
}

func (w *world) clock(ahead time.Duration) {
	w.client = github.New(github.NewTransport(w.hub.Roots()), func() time.Time { return time.Now().Add(ahead) })
}

// GitHub reads a body that names no repositories or permissions as all of them.
func TestGrantOfEverythingIsNeverAskedFor(t *testing.T) {
	w := start(t)
	for name, change := range map[string]func(*github.Grant){
		"no installation":  func(g *github.Grant) { g.Installation = 0 },
		"no repository":    func(g *github.Grant) { g.Repositories = nil },
		"no permission":    func(g *github.Grant) { g.Permissions = map[string]string{} },
		"no owner":         func(g *github.Grant) { g.Repositories = []string{"api"} },
		"no name":          func(g *github.Grant) { g.Repositories = []string{"acme/"} },
		"a path":           func(g *github.Grant) { g.Repositories = []string{"acme/api/x"} },
		"two owners":       func(g *github.Grant) { g.Repositories = []string{"acme/api", "other/api"} },
		"twice":            func(g *github.Grant) { g.Repositories = []string{"acme/api", "Acme/API"} },
		"no level":         func(g *github.Grant) { g.Permissions = map[string]string{"issues": ""} },
		"unnamed":          func(g *github.Grant) { g.Permissions = map[string]string{"": "read"} },
		"too many of them": func(g *github.Grant) { g.Repositories = many(501) },
	} {
		want := w.want
		change(&want)
		if _, err := w.client.CreateToken(t.Context(), w.app, signWith(appKey()), want); !errors.Is(err, github.ErrInvalid) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	if got := len(w.hub.Calls()); got != 0 {
		t.Errorf("got %d calls, want none", got)
	}
}

func many(n int) []string {
	var all []string
	for i := range n {
		all = append(all, fmt.Sprintf("acme/r%d", i))
	}
	return all
}

func TestFailureOfTheSignerCallsNobody(t *testing.T) {
	w := start(t)
	sealed := errors.New("Vault is sealed")
	for _, sign := range []github.Sign{
		func(context.Context, string) (string, error) { return "", sealed },
		func(context.Context, string) (string, error) { return "vault:v1:AAAA", nil },
		func(context.Context, string) (string, error) { return "", nil },
	} {
		if _, err := w.client.CreateToken(t.Context(), w.app, sign, w.want); err == nil {
			t.Error("got a token")
		}
	}
	_, err := w.client.CreateToken(t.Context(), w.app, func(context.Context, string) (string, error) { return "", sealed }, w.want)
	if !errors.Is(err, sealed) || len(w.hub.Calls()) != 0 {
		t.Errorf("got %v and %d calls", err, len(w.hub.Calls()))
	}
}

func TestOtherGrantIsReturnedToBeDeleted(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*githubapi.Grant)
		says   string
	}{
		"another repository too": {func(g *githubapi.Grant) { g.Repositories = append(g.Repositories, "acme/site") }, "acme/site"},
		"another repository":     {func(g *githubapi.Grant) { g.Repositories = []string{"acme/site"} }, "acme/site"},
		"another owner":          {func(g *githubapi.Grant) { g.Repositories = []string{"other/api"} }, "other/api"},
		"no repository":          {func(g *githubapi.Grant) { g.Repositories = nil }, "(none)"},
		"all repositories":       {func(g *githubapi.Grant) { g.Selection = "all" }, "not limited"},
		"higher permission":      {func(g *githubapi.Grant) { g.Permissions["issues"] = "write" }, "issues:write"},
		"another permission too": {func(g *githubapi.Grant) { g.Permissions["contents"] = "read" }, "contents:read"},
		"no permission":          {func(g *githubapi.Grant) { delete(g.Permissions, "issues") }, "issues:read"},
		"metadata: write":        {func(g *githubapi.Grant) { g.Permissions["metadata"] = "write" }, "metadata:write"},
		"a day":                  {func(g *githubapi.Grant) { g.Life = 24 * time.Hour }, "longer than an hour"},
		"dead already":           {func(g *githubapi.Grant) { g.Life = -time.Minute }, "no time of expiry"},
	} {
		t.Run(name, func(t *testing.T) {
			w := start(t)
			w.hub.Behave(githubapi.Behaviour{OtherGrant: tc.change, For: githubapi.CreatesToken})
			_, err := w.create(t.Context())
			var other *github.GrantError
			if !errors.As(err, &other) || !strings.Contains(err.Error(), tc.says) {
				t.Fatalf("got %v, want another grant and %q", err, tc.says)
			}
			if strings.Contains(err.Error(), other.Token.Secret.Reveal()) {
				t.Error("the error has the token")
			}
			if name == "dead already" {
				return
			}
			if err := w.client.DeleteToken(t.Context(), w.app, other.Token.Secret); err != nil || len(w.hub.Live()) != 0 {
				t.Errorf("got %v and %d live tokens, want none", err, len(w.hub.Live()))
			}
		})
	}
}

func TestLimitsSayWhenToCallAgain(t *testing.T) {
	for name, tc := range map[string]struct {
		limit   githubapi.Limit
		after   time.Duration
		atLeast time.Duration
		atMost  time.Duration
	}{
		"primary":            {githubapi.Primary, 90 * time.Second, 80 * time.Second, 90 * time.Second},
		"primary, reset now": {githubapi.Primary, -time.Minute, time.Second, time.Second},
		"primary, for hours": {githubapi.Primary, 3 * time.Hour, time.Hour, time.Hour},
		"secondary":          {githubapi.Secondary, 30 * time.Second, 30 * time.Second, 30 * time.Second},
		"secondary, unsaid":  {githubapi.Secondary, 0, time.Minute, time.Minute},
		"429":                {githubapi.TooMany, 5 * time.Second, 5 * time.Second, 5 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			w := start(t)
			token := w.mustCreate(t)
			w.hub.Behave(githubapi.Behaviour{Limit: tc.limit, RetryAfter: tc.after})
			_, err := w.create(t.Context())
			for _, err := range []error{err, w.client.DeleteToken(t.Context(), w.app, token.Secret)} {
				var limited *github.LimitedError
				if !errors.As(err, &limited) || limited.RetryAfter < tc.atLeast || limited.RetryAfter > tc.atMost {
					t.Errorf("got %v, want %s to %s", err, tc.atLeast, tc.atMost)
				}
			}
			if len(w.hub.Live()) != 1 {
				t.Errorf("got %d live tokens, want 1", len(w.hub.Live()))
			}
		})
	}
}

func TestUnreachableServerIsToldFromALostAnswer(t *testing.T) {
	for name, tc := range map[string]struct {
		prepare func(*testing.T, *world) context.Context
		lost    bool
		live    int
	}{
		"cut before TLS": {func(t *testing.T, w *world) context.Context {
			w.hub.Behave(githubapi.Behaviour{Unreachable: true})
			return t.Context()
		}, false, 0},
		"port closed": {func(t *testing.T, w *world) context.Context { w.hub.Close(); return t.Context() }, false, 0},
		"no such host": {func(t *testing.T, w *world) context.Context {
			w.app.URL = parse(t, "https://github.invalid")
			return t.Context()
		}, false, 0},
		"unknown authority": {func(t *testing.T, w *world) context.Context {
			w.client = github.New(github.NewTransport(nil), time.Now)
			return t.Context()
		}, false, 0},
		"answer lost": {func(t *testing.T, w *world) context.Context {
			w.hub.Behave(githubapi.Behaviour{LoseAnswer: true})
			return t.Context()
		}, true, 1},
		"answer cut": {func(t *testing.T, w *world) context.Context {
			w.hub.Behave(githubapi.Behaviour{CutAnswer: true})
			return t.Context()
		}, true, 1},
		"answer late": {func(t *testing.T, w *world) context.Context {
			w.hub.Behave(githubapi.Behaviour{Delay: time.Second})
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			t.Cleanup(cancel)
			return ctx
		}, true, 1},
		"500": {func(t *testing.T, w *world) context.Context {
			w.hub.Behave(githubapi.Behaviour{Status: 500})
			return t.Context()
		}, true, 0},
		"503": {func(t *testing.T, w *world) context.Context {
			w.hub.Behave(githubapi.Behaviour{Status: 503})
			return t.Context()
		}, true, 0},
		"200": {func(t *testing.T, w *world) context.Context {
			w.hub.Behave(githubapi.Behaviour{Status: 200})
			return t.Context()
		}, true, 0},
		"408": {func(t *testing.T, w *world) context.Context {
			w.hub.Behave(githubapi.Behaviour{Status: 408})
			return t.Context()
		}, true, 0},
	} {
		t.Run(name, func(t *testing.T) {
			w := start(t)
			_, err := w.create(tc.prepare(t, &w))
			_, isLost := errors.AsType[*github.LostError](err)
			_, isUnreachable := errors.AsType[*github.UnreachableError](err)
			if isLost != tc.lost || isUnreachable == tc.lost {
				t.Errorf("got %T: %v, want lost: %t", err, err, tc.lost)
			}
			deadline := time.Now().Add(5 * time.Second)
			for len(w.hub.Live()) != tc.live && time.Now().Before(deadline) {
				time.Sleep(10 * time.Millisecond)
			}
			if len(w.hub.Live()) != tc.live {
				t.Errorf("got %d live tokens, want %d", len(w.hub.Live()), tc.live)
			}
		})
	}
}

package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/openapi"
)

// desk answers requests in memory, so that a test can use a fake clock. Like the server in newClient it may return anything.
type desk struct {
	answer func(n int, w http.ResponseWriter) // the n-th ask, from 1
	state  func() openapi.Status              // of a request that waits for approval

	mu        sync.Mutex
	asked     []time.Time
	redeemed  int
	overtaken int // how many redemptions come too late
	released  []string
	withdrawn []string
}

func (d *desk) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	w := httptest.NewRecorder()
	d.mu.Lock()
	defer d.mu.Unlock()
	path := strings.Split(strings.TrimPrefix(r.URL.Path, "/v1/"), "/")
	switch {
	case path[0] == "tokens":
		d.asked = append(d.asked, time.Now())
		d.answer(len(d.asked), w)
	case path[0] == "issuances":
		d.released = append(d.released, path[1])
		writeToken(w, 200, `{"ended":[],"counts":{}}`)
	case r.Method == http.MethodDelete:
		d.withdrawn = append(d.withdrawn, path[1])
		w.WriteHeader(http.StatusNoContent)
	case len(path) == 3:
		if d.redeemed++; d.redeemed <= d.overtaken {
			refused(w, openapi.CodeNotApproved, 409)
			break
		}
		issued(w, "approved", time.Minute)
	default:
		writeToken(w, 200, fmt.Sprintf(`{"id":%q,"status":%q}`, path[1], d.state()))
	}
	return w.Result(), nil
}

// asks returns the times of the requests.
func (d *desk) asks() []time.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.asked)
}

func (d *desk) client(t *testing.T) *client.Client {
	t.Helper()
	c, err := client.New(client.Config{BaseURL: "https://brevet.test", HTTPClient: &http.Client{Transport: d}})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func issued(w http.ResponseWriter, id string, ttl time.Duration) {
	body, _ := json.Marshal(openapi.Token{ID: id, Kind: "jwt", Token: "eyJ-" + id, TTL: int64(ttl / time.Second), ExpiresAt: time.Now().Add(ttl)})
	writeToken(w, 201, string(body))
}

func refused(w http.ResponseWriter, code openapi.ProblemCode, status int) {
	writeProblem(w, openapi.Problem{Type: code.Type(), Code: code, Status: status, Title: string(code)})
}

func pending(w http.ResponseWriter, id string) {
	writeToken(w, 202, fmt.Sprintf(`{"id":%q,"approval":{"group":"oncall","quorum":1},"expires_at":%q}`, id, time.Now().Add(10*time.Minute).Format(time.RFC3339)))
}

// earlier is pending for a request that was made earlier.
func earlier(w http.ResponseWriter, id string) {
	writeToken(w, 202, fmt.Sprintf(`{"id":%q,"earlier":true,"approval":{"group":"oncall","quorum":1},"expires_at":%q}`, id, time.Now().Add(10*time.Minute).Format(time.RFC3339)))
}

func name(n int) string { return fmt.Sprintf("c-%d", n) }

var anAsk = client.Ask{Scope: "a.b", Task: "t"}

func TestHoldRenewsBeforeExpiryAndReleases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &desk{answer: func(n int, w http.ResponseWriter) { issued(w, name(n), 5*time.Minute) }}
		var obtained []string
		hold, err := d.client(t).Hold(t.Context(), client.HoldConfig{
			Ask: anAsk, Obtained: func(token *client.Token) { obtained = append(obtained, token.Secret.Reveal()) },
		})
		if err != nil {
			t.Fatal(err)
		}
		for range 3600 {
			time.Sleep(time.Second)
			if asked := d.asks(); time.Since(asked[len(asked)-1]) > 5*time.Minute {
				t.Fatalf("asked last at %s, for what lived 5m", asked[len(asked)-1])
			}
		}
		// Two credentials have not expired yet: the newest, and the one that it replaced.
		asked := d.asks()
		time.Sleep(time.Until(asked[len(asked)-1].Add(4 * time.Minute)))
		if err := hold.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		asked = d.asks()
		n := len(asked)
		if !slices.Equal(d.released, []string{name(n - 1), name(n)}) {
			t.Errorf("released %v, want the last two of %d", d.released, n)
		}
		if len(obtained) != n || obtained[0] != "eyJ-c-1" || hold.Token().ID != name(n) {
			t.Errorf("asked %d times, heard of %v and holds %s", n, obtained, hold.Token().ID)
		}
		for i, at := range asked[1:] {
			if gap := at.Sub(asked[i]); gap < 3*time.Minute || gap > 200*time.Second {
				t.Errorf("asked again after %s, want two thirds of 5m or a little less", gap)
			}
		}
		if since := time.Since(asked[n-1]); since < time.Hour {
			t.Errorf("asked %s ago, after Close", since)
		}
	})
}

func TestHoldGoesOnThroughFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &desk{answer: func(n int, w http.ResponseWriter) {
			switch {
			case n == 1 || n > 4:
				issued(w, name(n), time.Minute)
			case n == 2:
				http.Error(w, "a proxy's page", http.StatusBadGateway)
			case n == 3:
				refused(w, openapi.CodeVaultUnavailable, 503) // Retry-After: 7
			default:
				refused(w, openapi.CodeRateLimited, 429)
			}
		}}
		var failures []error
		hold, err := d.client(t).Hold(t.Context(), client.HoldConfig{Ask: anAsk, Failed: func(err error) { failures = append(failures, err) }})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(59 * time.Second)
		synctest.Wait()
		if len(failures) != 3 || !errors.Is(failures[1], client.ErrUnavailable) || hold.Token().ID != name(5) {
			t.Errorf("got the failures %v and holds %s, want three and the fifth", failures, hold.Token().ID)
		}
		if pause := d.asked[3].Sub(d.asked[2]); pause < 7*time.Second {
			t.Errorf("asked again after %s, the server wanted 7s", pause)
		}
		if err := hold.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

func TestHoldStopsWhenDenied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &desk{answer: func(n int, w http.ResponseWriter) {
			if n == 1 {
				issued(w, name(n), time.Minute)
				return
			}
			refused(w, openapi.CodeDenied, 403)
		}}
		var failures []error
		hold, err := d.client(t).Hold(t.Context(), client.HoldConfig{Ask: anAsk, Failed: func(err error) { failures = append(failures, err) }})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if len(d.asked) != 2 || len(failures) != 1 || !errors.Is(failures[0], client.ErrDenied) {
			t.Errorf("asked %d times and heard %v, want one denial and peace", len(d.asked), failures)
		}
		if err := hold.Close(t.Context()); err != nil || !slices.Equal(d.released, []string{"c-1"}) {
			t.Errorf("got %v, released %v", err, d.released)
		}
	})
}

func TestHoldWaitsForPeople(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		decided := time.Now().Add(3 * time.Minute)
		d := &desk{
			answer: func(n int, w http.ResponseWriter) { pending(w, name(n)) },
			state: func() openapi.Status {
				if time.Now().Before(decided) {
					return openapi.StatusPending
				}
				return "approved"
			},
		}
		var waited []string
		hold, err := d.client(t).Hold(t.Context(), client.HoldConfig{Ask: anAsk, Waiting: func(p client.Pending) { waited = append(waited, p.Group) }})
		if err != nil || hold.Token().ID != "approved" || time.Now().Before(decided) || d.redeemed != 1 {
			t.Fatalf("got %v after %d redemptions", err, d.redeemed)
		}
		// The next request waits too. Closing the Hold withdraws it, so nobody has to vote on a request that is no longer needed.
		d.mu.Lock()
		decided = time.Now().Add(time.Hour)
		d.mu.Unlock()
		time.Sleep(time.Minute)
		if err := hold.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if len(waited) != 2 || !slices.Equal(d.withdrawn, []string{"c-2"}) {
			t.Errorf("waited %d times and withdrew %v, want the second withdrawn", len(waited), d.withdrawn)
		}
	})
}

func TestObtainWithdrawsAbandonedRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &desk{
			answer: func(n int, w http.ResponseWriter) { pending(w, name(n)) },
			state:  func() openapi.Status { return openapi.StatusPending },
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err := d.client(t).Obtain(ctx, anAsk, nil)
		if !errors.Is(err, context.DeadlineExceeded) || !slices.Equal(d.withdrawn, []string{"c-1"}) {
			t.Errorf("got %v, and withdrew %v", err, d.withdrawn)
		}
	})
}

// Others may wait for a request that was made earlier.
func TestObtainKeepsEarlierRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &desk{
			answer: func(n int, w http.ResponseWriter) { earlier(w, name(n)) },
			state:  func() openapi.Status { return openapi.StatusPending },
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err := d.client(t).Obtain(ctx, anAsk, nil)
		abandoned, ok := errors.AsType[*client.AbandonedError](err)
		if !ok || abandoned.Kept == nil || abandoned.Pending.ID != "c-1" || !errors.Is(err, context.DeadlineExceeded) || len(d.withdrawn) > 0 {
			t.Errorf("got %v, and withdrew %v, want nothing withdrawn", err, d.withdrawn)
		}
	})
}

// Two processes of a sandbox that obtain the same share one request. The one that comes too late asks again, unless its own request was
// withdrawn, rejected or has expired.
func TestObtainAsksAgainIfAnotherProcessWasFaster(t *testing.T) {
	for _, tc := range []struct {
		name   string
		state  openapi.Status
		answer func(http.ResponseWriter, string)
		key    string
		again  bool
	}{
		{"approved, then redeemed by another", openapi.StatusApproved, pending, "", true},
		{"redeemed by another", openapi.StatusRedeemed, earlier, "", true},
		{"withdrawn by the one that made it", openapi.StatusWithdrawn, earlier, "", true},
		{"withdrawn by somebody else", openapi.StatusWithdrawn, pending, "", false},
		{"expired", openapi.StatusExpired, earlier, "", false},
		{"with an idempotency key", openapi.StatusApproved, pending, "once", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := &desk{
				answer: func(n int, w http.ResponseWriter) { tc.answer(w, name(n)) }, state: func() openapi.Status { return tc.state }, overtaken: 1,
			}
			ask := anAsk
			ask.IdempotencyKey = tc.key
			token, err := d.client(t).Obtain(t.Context(), ask, nil)
			if tc.again != (err == nil) || tc.again != (token != nil) || !tc.again && !errors.Is(err, client.ErrDecided) {
				t.Errorf("got %v, %v after %d asks, want another ask: %t", token, err, len(d.asks()), tc.again)
			}
		})
	}
}

func TestHoldRefusesAnIdempotencyKey(t *testing.T) {
	ask := anAsk
	ask.IdempotencyKey = "once"
	if _, err := (&desk{}).client(t).Hold(t.Context(), client.HoldConfig{Ask: ask}); !errors.Is(err, client.ErrInvalid) {
		t.Errorf("got %v, want ErrInvalid", err)
	}
}

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

// revocations is the number of tokens that are revoked, one after the other, to measure the latency.
const revocations = 100

// introspection measures introspections by n callers in parallel, and the latency of revocations without and with that
// load.
func (d *deployment) introspection(ctx context.Context, n int, lasts time.Duration, r *report) error {
	askers, err := d.introspectors(ctx, n)
	if err != nil {
		return err
	}
	held, err := d.tokens(ctx, 2*revocations)
	if err != nil {
		return err
	}
	warm, l := d.closed(ctx, askers, lasts/2), d.closed(ctx, askers, lasts)
	idle, err := d.revoked(ctx, held[:revocations])
	if err != nil {
		return err
	}
	over, stop := context.WithCancel(ctx)
	var asked load
	var asking sync.WaitGroup
	asking.Go(func() { asked = d.closed(over, askers, time.Minute) })
	busy, err := d.revoked(ctx, held[revocations:])
	stop()
	asking.Wait()
	r.Introspect, r.Revoke, r.BusyRevoke = figuresOf(l), figuresOf(idle), figuresOf(busy)
	return errors.Join(err, warm.check(), l.check(), asked.check())
}

// revoked measures revocations, one after the other.
func (d *deployment) revoked(ctx context.Context, held []token) (l load, err error) {
	officer, err := d.proved(spiffeid.RequireFromString("spiffe://" + domain + "/ops/admin"))
	if err != nil {
		return l, err
	}
	revoke, began := asking(officer, http.MethodPost, d.url+"/v1/revocations", http.Header{}), time.Now()
	for _, h := range held {
		body, err := json.Marshal(map[string]any{"id": h.ID, "reason": "measured"})
		if err != nil {
			return l, err
		}
		since := time.Now()
		got, err := revoke(ctx, body)
		if err != nil || got.status != http.StatusOK {
			return l, fmt.Errorf("revoking: status %d: %.300s: %w", got.status, got.body, err)
		}
		l.took = append(l.took, time.Since(since))
	}
	l.elapsed = time.Since(began)
	slices.Sort(l.took)
	return l, nil
}

// introspectors returns n callers of a gateway. Each has its own connection and introspects one token repeatedly, as a
// gateway does while an agent works through it.
func (d *deployment) introspectors(ctx context.Context, n int) ([]call, error) {
	gateway, err := d.proved(spiffeid.RequireFromString("spiffe://" + domain + "/gateway"))
	if err != nil {
		return nil, err
	}
	held, err := d.tokens(ctx, n)
	if err != nil {
		return nil, err
	}
	return callers(n, func(i int) (call, error) {
		ask := asking(gateway, http.MethodPost, d.url+"/oauth2/introspect", http.Header{"Content-Type": {"application/x-www-form-urlencoded"}})
		question := []byte(url.Values{"token": {held[i].Token}}.Encode())
		return func(ctx context.Context) error {
			got, err := ask(ctx, question)
			if err == nil && !bytes.Contains(got.body, []byte(`"active":true`)) {
				err = fmt.Errorf("introspection: status %d: %.300s", got.status, got.body)
			}
			return err
		}, nil
	})
}

package main

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/egress"
	"github.com/brevet-dev/brevet/openapi"
)

// calls returns what is recorded of the calls of the research agent's task, or nothing if there is no record.
func (s *session) calls(t *testing.T, task string) openapi.TaskCalls {
	t.Helper()
	flags := CallerFlags{}
	for _, pair := range s.as("auditor") { // the last one wins
		name, value, _ := strings.Cut(pair, "=")
		switch name {
		case "BREVET_SERVER":
			flags.Server = value
		case "BREVET_SERVER_ID":
			flags.ServerID = value
		case "SPIFFE_ENDPOINT_SOCKET":
			flags.WorkloadAPI = value
		}
	}
	auditor, disconnect, err := flags.open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer disconnect()
	me, _ := object(t, brevet(t, s.env, "whoami", "-o", "json").out)["id"].(string)
	calls, err := auditor.TaskCalls(t.Context(), me, task)
	if err != nil && !errors.Is(err, client.ErrNotFound) {
		t.Fatal(err)
	}
	return calls
}

// recordedCalls describes rows of calls.
func recordedCalls(calls openapi.TaskCalls) map[string]int64 {
	all := map[string]int64{}
	for _, row := range calls.Calls {
		all[row.Path+row.Refused] += row.Count
	}
	return all
}

// egressKilled checks that a killed gateway has lost nothing that it reported: the ledger has exactly the calls that the host saw up
// to the last recorded one. The session of that gateway stays open, and the next gateway has another one.
func (s *session) egressKilled(t *testing.T, host *webHost, reach []string) {
	const task = "t-killed"
	go func() {
		for {
			select {
			case <-host.seen:
			case <-t.Context().Done():
				return
			}
		}
	}()
	open := func() (*process, func() error) {
		dir := filepath.Join(t.TempDir(), "gateway")
		p := launch(t, s.env, append([]string{"egress", "--task", task, "--listen", "127.0.0.1:0", "--dir", dir, "--calls-per-second", "1000000"}, reach...)...)
		p.waitFor(t, p.err, "serving")
		endpoint, err := egress.ReadEndpoint(dir)
		if err != nil {
			t.Fatal(err)
		}
		sandbox := &http.Client{Transport: &http.Transport{}}
		t.Cleanup(sandbox.CloseIdleConnections)
		return p, func() error {
			for path, status := range map[string]int{"/repos/acme/api": 200, "/other": 403} {
				req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+endpoint.Address+"/"+host.name+path, nil)
				if err != nil {
					return err
				}
				req.SetBasicAuth("brevet", endpoint.Password.Reveal())
				resp, err := sandbox.Do(req)
				if err != nil {
					return err
				}
				_, err = io.Copy(io.Discard, resp.Body)
				if err = errors.Join(err, resp.Body.Close()); err != nil {
					return err
				}
				if resp.StatusCode != status {
					return fmt.Errorf("got %d for %s, want %d", resp.StatusCode, path, status)
				}
			}
			return nil
		}
	}
	host.forget()
	p, call := open()
	var calls openapi.TaskCalls
	loaded := make(chan error, 1)
	go func() {
		for {
			if err := call(); err != nil {
				loaded <- err
				return
			}
		}
	}()
	within(t, patience, "a report of the load is recorded", func() bool { // the first report has few calls
		calls = s.calls(t, task)
		return slices.ContainsFunc(calls.Calls, func(row openapi.CallRow) bool { return row.Path != "" && row.Count >= 10 })
	})
	p.signal(t, syscall.SIGKILL)
	select {
	case err := <-loaded:
		t.Logf("the load ended with %v", err)
	case <-time.After(patience):
		t.Fatalf("waited %s for the end of the load", patience)
	}
	calls = s.calls(t, task)
	var passed, refused openapi.CallRow
	for _, row := range calls.Calls {
		switch {
		case row.Path == "/repos/{repo}" && row.Refused == "":
			passed = row
		case row.Path == "" && row.Refused == "egress_no_rule":
			refused = row
		default:
			t.Errorf("got %+v", row)
		}
	}
	// The sandbox makes one call at a time, so the next call reaches the host after the last one is counted.
	if seen := host.servedUntil(passed.Last); passed.Count != seen || seen < 10 {
		t.Errorf("%d calls are recorded until %s, and the host saw %d", passed.Count, passed.Last, seen)
	}
	if refused.Count < passed.Count-1 || refused.Count > passed.Count+1 {
		t.Errorf("got %d refused calls, want as many as the %d others", refused.Count, passed.Count)
	}
	if calls.Complete || len(calls.Sessions) != 1 || calls.Sessions[0].Closed {
		t.Errorf("got %v, %+v, want one open session", calls.Complete, calls.Sessions)
	}

	p, call = open()
	if err := call(); err != nil {
		t.Fatal(err)
	}
	p.signal(t, syscall.SIGTERM)
	p.finish(t).want(t, 0)
	again := s.calls(t, task)
	if got, want := recordedCalls(again)["/repos/{repo}"], passed.Count+1; got != want {
		t.Errorf("got %d calls with the next gateway, want %d", got, want)
	}
	if again.Complete || len(again.Sessions) != 2 || again.Sessions[0].Closed || !again.Sessions[1].Closed {
		t.Errorf("got %v, %+v, want the second session closed", again.Complete, again.Sessions)
	}
}

package faults_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/brevet-dev/brevet/broker"
)

// action is the failure at a crash point.
type action string

// The actions.
const (
	kill  action = "kill -9"
	crash action = "panic"
	stall action = "stall" // for five seconds
	fail  action = "error"
)

var actions = []action{kill, crash, stall, fail}

// point is a place on the path of one credential where a replica can fail.
type point string

// The crash points.
const (
	beforeIntent    point = "C1"  // before the request is committed
	afterIntent     point = "C2"  // committed, and the answer to the commit is lost
	wrapperLost     point = "C3"  // the answer with the wrapper token is lost
	mintLost        point = "C4"  // the answer with the credential is lost
	beforeIssued    point = "C5"  // minted, not recorded
	afterIssued     point = "C6"  // recorded, neither delivered nor renewed
	beforeRenewal   point = "C6r" // recorded and written, not renewed
	writing         point = "C7"  // the answer cannot be written
	afterRevoking   point = "C8"  // inactive here, Vault not called yet
	afterRevocation point = "C8r" // dead in Vault, which is not recorded
	afterQuorum     point = "C9"  // people have approved it, and its intent is not committed
)

// fault is a failure that a replica meets once.
type fault struct {
	Point  point
	Action action
	Spares int64 // how often the replica passes the point before the fault strikes

	// Spoils is a path in Vault whose answers are spoiled. They get the status Says. If Says is zero, the first answer is cut off
	// before its first byte, the next one before its second, and so on.
	Spoils string
	Says   int

	passed atomic.Int64
	cuts   atomic.Int64
}

// struckLine is the line that a replica logs when its fault strikes.
const struckLine = "the fault strikes"

var errInjected = errors.New("injected")

// at is called where the replica passes a crash point. The replica continues with the error that it returns.
func (f *fault) at(p point) error {
	if f.Point != p || f.passed.Add(1) != f.Spares+1 {
		return nil
	}
	fmt.Fprintln(os.Stderr, struckLine)
	switch f.Action {
	case kill:
		_ = syscall.Kill(syscall.Getpid(), syscall.SIGKILL)
		select {} // until the signal has arrived
	case crash:
		panic("injected at " + string(p))
	case stall:
		time.Sleep(5 * time.Second)
		return nil
	case fail:
		return errInjected
	default:
		return nil
	}
}

type faultyLedger struct {
	broker.Ledger
	fault *fault
}

func (l faultyLedger) Begin(ctx context.Context, rec broker.Record) (*broker.View, error) {
	if err := l.fault.at(beforeIntent); err != nil {
		return nil, fmt.Errorf("%w: %w", broker.ErrLedgerUnavailable, err)
	}
	if rec.Approves != "" {
		if err := l.fault.at(afterQuorum); err != nil {
			return nil, fmt.Errorf("%w: %w", broker.ErrLedgerUnavailable, err)
		}
	}
	earlier, err := l.Ledger.Begin(ctx, rec)
	if injected := l.fault.at(afterIntent); injected != nil {
		return nil, fmt.Errorf("%w: %w", broker.ErrLedgerUnavailable, injected)
	}
	return earlier, err
}

func (l faultyLedger) RecordOutcome(ctx context.Context, out broker.Outcome) error {
	before, after := outcomePoints(out.Status)
	if err := l.fault.at(before); err != nil {
		return fmt.Errorf("%w: %w", broker.ErrLedgerUnavailable, err)
	}
	if err := l.Ledger.RecordOutcome(ctx, out); err != nil {
		return err
	}
	if err := l.fault.at(after); err != nil {
		return fmt.Errorf("%w: %w", broker.ErrLedgerUnavailable, err)
	}
	return nil
}

// outcomePoints returns the crash points around the commit of an outcome.
func outcomePoints(to broker.Status) (before, after point) {
	switch to {
	case broker.StatusIssued:
		return beforeIssued, afterIssued
	case broker.StatusRevoking:
		return "", afterRevoking
	case broker.StatusRevoked, broker.StatusReleased:
		return afterRevocation, ""
	default:
		return "", ""
	}
}

type faultyMinter struct {
	broker.Minter
	fault *fault
}

func (m faultyMinter) Renew(ctx context.Context, minted broker.Minted) error {
	if err := m.fault.at(beforeRenewal); err != nil {
		return fmt.Errorf("%w: %w", broker.ErrVaultUnavailable, err)
	}
	return m.Minter.Renew(ctx, minted)
}

// transport loses the answers of Vault and of GitHub, or spoils them.
func (f *fault) transport(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(req *http.Request) (*http.Response, error) {
		resp, err := next.RoundTrip(req)
		if err != nil {
			return nil, err
		}
		if strings.HasSuffix(req.URL.Path, "-log") { // skip checkpoints: the fault is for requests for credentials
			return resp, nil
		}
		if f.Spoils != "" && strings.HasPrefix(req.URL.Path, "/v1/"+f.Spoils) {
			return f.spoil(resp), nil
		}
		if injected := f.at(answerOf(req)); injected != nil {
			_ = resp.Body.Close()
			return nil, injected
		}
		return resp, nil
	})
}

func (f *fault) spoil(resp *http.Response) *http.Response {
	if f.Says != 0 {
		_ = resp.Body.Close()
		resp.StatusCode, resp.Body = f.Says, io.NopCloser(strings.NewReader(`{"errors":["not now"]}`))
		return resp
	}
	resp.Body = &cutOff{ReadCloser: resp.Body, left: int(f.cuts.Add(1) - 1)}
	return resp
}

// cutOff is the body of an answer whose connection breaks after some bytes.
type cutOff struct {
	io.ReadCloser
	left int
}

func (c *cutOff) Read(p []byte) (int, error) {
	if c.left == 0 {
		return 0, io.ErrUnexpectedEOF
	}
	n, err := c.ReadCloser.Read(p[:min(len(p), c.left)])
	c.left -= n
	return n, err
}

// answerOf returns the crash point at which the answer to a call to Vault or to GitHub arrives.
func answerOf(req *http.Request) point {
	path := strings.TrimPrefix(req.URL.Path, "/v1/")
	switch {
	case strings.HasPrefix(path, "auth/token/create/"):
		return wrapperLost
	// Of the calls for a token of GitHub, only the one to GitHub returns the credential.
	case strings.HasPrefix(path, "brevet-github"), strings.HasSuffix(path, "/installation/token"):
		return ""
	case strings.HasPrefix(path, "auth/"), strings.HasPrefix(path, "sys/"), strings.HasPrefix(path, "transit/keys/"):
		return ""
	default:
		return mintLost
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (r roundTripper) RoundTrip(req *http.Request) (*http.Response, error) { return r(req) }

// handler breaks the writing of a credential.
func (f *fault) handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		next.ServeHTTP(&faultyWriter{ResponseWriter: w, fault: f}, r)
	})
}

type faultyWriter struct {
	http.ResponseWriter
	fault  *fault
	status int
}

func (w *faultyWriter) WriteHeader(status int) {
	w.status = status
	if status != http.StatusCreated {
		w.ResponseWriter.WriteHeader(status)
	}
}

// Write delays the header until the body follows, as a breaking socket does.
func (w *faultyWriter) Write(p []byte) (int, error) {
	if w.status == http.StatusCreated {
		if err := w.fault.at(writing); err != nil {
			return 0, err
		}
		w.ResponseWriter.WriteHeader(w.status)
		w.status = 0
	}
	return w.ResponseWriter.Write(p)
}

// Unwrap lets http.ResponseController reach the connection.
func (w *faultyWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Package witness sends the checkpoints of the ledger to other systems: to witnesses, which cosign only checkpoints that
// extend those they cosigned before (c2sp.org/tlog-witness), and to anchors, which store copies.
//
// It must never store a cosignature that it has not verified, and never delay the issuing of credentials.
package witness

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"sync"
	"time"

	"github.com/brevet-dev/brevet/internal/wait"
	"github.com/cenkalti/backoff/v5"
	"golang.org/x/mod/sumdb/tlog"
)

const (
	// lookEvery is how often the carrier checks for a new checkpoint.
	lookEvery = time.Second
	// firstRetry and longestRetry bound the delay between two attempts.
	firstRetry, longestRetry = time.Second, time.Minute
)

// Log is the source of checkpoints.
type Log interface {
	// Growth returns the latest signed checkpoint, its size, and the proof that the log of size from is a prefix of it. The
	// proof is empty if from is zero or larger than the size. The error is audit.ErrNotYet if there is no checkpoint.
	Growth(ctx context.Context, from int64) (size int64, signed string, proof tlog.TreeProof, err error)
	// Cosign stores a witness's cosignature of the checkpoint of a size.
	Cosign(ctx context.Context, witness string, size int64, line string) error
	// AcquireWitnessLeadership runs do on one replica at a time. It returns when ctx ends or this replica loses the
	// leadership.
	AcquireWitnessLeadership(ctx context.Context, do func(ctx context.Context) error) error
}

// Config configures a Carrier. Every field is required, except Witnesses and Anchors.
type Config struct {
	Log       Log
	Witnesses []Spec
	Anchors   []Anchor
	// OnCosigned is called with the size of each checkpoint that a witness has cosigned. OnFailure is called for each failed
	// attempt, with the reason.
	OnCosigned func(witness string, size int64)
	OnFailure  func(witness string, why Why)
	Logger     *slog.Logger
}

// Why is the kind of a failure.
type Why string

// The kinds of failures.
const (
	// WhyHistory means that the checkpoint that the witness cosigned before is not a prefix of this log.
	WhyHistory Why = "history"
	// WhyCall is every other failure: the witness is unreachable, does not know the log, or returns another error.
	WhyCall Why = "call"
)

// Carrier sends each new checkpoint to witnesses and anchors, and retries until they accept it.
type Carrier struct {
	cfg Config
	// own contains the duties of every replica, and led those of the leader only.
	own, led []duty

	mu  sync.Mutex
	all []*Status // mu also guards what each points to
}

// Status is the state of one witness or anchor, as this replica sees it.
type Status struct {
	Name   string
	Anchor bool
	// Tended reports whether this replica sends checkpoints to it. One replica serves all witnesses and the anchors that are
	// not files; every replica serves its own files.
	Tended bool
	// Failing is the kind of the current failure, or empty if there is none.
	Failing Why
}

// Status returns the state of each witness and anchor, in the order of the configuration, witnesses first.
func (c *Carrier) Status() []Status {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := make([]Status, len(c.all))
	for i, s := range c.all {
		all[i] = *s
	}
	return all
}

// notes registers a witness or anchor and returns the function that updates its Status.
func (c *Carrier) notes(name string, anchor bool) func(tended bool, failing Why) {
	s := &Status{Name: name, Anchor: anchor}
	c.all = append(c.all, s)
	return func(tended bool, failing Why) {
		c.mu.Lock()
		defer c.mu.Unlock()
		s.Tended, s.Failing = tended, failing
	}
}

// duty is work to do for each new checkpoint.
type duty struct {
	log *slog.Logger
	// every is the shortest time between two accepted checkpoints.
	every time.Duration
	// carry reports whether there was a new checkpoint and it was accepted.
	carry  func(ctx context.Context) (taken bool, err error)
	failed func(Why)
	// note updates the state in Status.
	note func(tended bool, failing Why)
}

var aName = regexp.MustCompile(`^(?:[a-z0-9][a-z0-9_-]{0,62})$`)

// New checks cfg and returns a Carrier. It makes no calls yet.
func New(cfg Config) (*Carrier, error) {
	if cfg.Log == nil || cfg.OnCosigned == nil || cfg.OnFailure == nil || cfg.Logger == nil {
		return nil, errors.New("witness: ledger, callbacks and log are all required")
	}
	c := &Carrier{cfg: cfg}
	known := map[string]bool{}
	for _, s := range cfg.Witnesses {
		w, err := newWitness(s)
		if err != nil {
			return nil, err
		}
		// The same key under two names would count as two witnesses.
		if known[s.Name] || known[s.Key] {
			return nil, fmt.Errorf("witness %s: the name or the key is used twice", s.Name)
		}
		known[s.Name], known[s.Key] = true, true
		c.led = append(c.led, duty{
			log: cfg.Logger.With("witness", w.name), every: lookEvery,
			carry: func(ctx context.Context) (bool, error) {
				taken, err := w.carry(ctx, cfg.Log)
				if taken {
					cfg.OnCosigned(w.name, w.kept)
				}
				return taken, err
			},
			failed: func(why Why) { cfg.OnFailure(w.name, why) },
			note:   c.notes(w.name, false),
		})
	}
	known = map[string]bool{}
	for _, a := range cfg.Anchors {
		if !aName.MatchString(a.Name) || known[a.Name] {
			return nil, fmt.Errorf("anchor: the name %q must be unique, and lower-case letters, digits, - and _, at most 63", a.Name)
		}
		known[a.Name] = true
		d := duty{log: cfg.Logger.With("anchor", a.Name), every: max(a.Every, lookEvery), carry: a.carrier(cfg.Log), failed: func(Why) {}, note: c.notes(a.Name, true)}
		if _, file := a.Place.(File); file {
			c.own = append(c.own, d)
		} else {
			c.led = append(c.led, d)
		}
	}
	return c, nil
}

// Run sends checkpoints until ctx ends. A witness or anchor that hangs does not delay the others.
func (c *Carrier) Run(ctx context.Context) error {
	var all sync.WaitGroup
	for _, d := range c.own {
		all.Go(func() { tend(ctx, d) })
	}
	for len(c.led) > 0 && ctx.Err() == nil {
		err := c.cfg.Log.AcquireWitnessLeadership(ctx, func(ctx context.Context) error {
			var led sync.WaitGroup
			for _, d := range c.led {
				led.Go(func() { tend(ctx, d) })
			}
			led.Wait()
			return ctx.Err()
		})
		if ctx.Err() == nil {
			c.cfg.Logger.WarnContext(ctx, "sending checkpoints interrupted", "error", err)
			wait.For(ctx, firstRetry)
		}
	}
	all.Wait()
	return ctx.Err()
}

// tend runs a duty until ctx ends. It logs only when a failure begins, changes its kind or ends.
func tend(ctx context.Context, d duty) {
	retry := backoff.NewExponentialBackOff()
	retry.InitialInterval, retry.MaxInterval = firstRetry, longestRetry
	var failing Why
	d.note(true, "")
	defer d.note(false, "")
	for ctx.Err() == nil {
		taken, err := d.carry(ctx)
		next := lookEvery
		switch {
		case ctx.Err() != nil:
			return // the replica is stopping, or another one leads
		case err != nil:
			why := WhyCall
			if errors.Is(err, ErrHistory) {
				why = WhyHistory
			}
			d.failed(why)
			switch why {
			case failing:
			case WhyHistory:
				d.log.ErrorContext(ctx, "a witness has cosigned another history of the ledger: see docs/audit.md", "error", err)
			default:
				d.log.WarnContext(ctx, "checkpoints are not accepted", "error", err)
			}
			failing, next = why, retry.NextBackOff()
		case failing != "":
			d.log.InfoContext(ctx, "checkpoints are accepted again")
			retry.Reset()
			failing = ""
		}
		d.note(true, failing)
		if taken {
			next = d.every
		}
		wait.For(ctx, next)
	}
}

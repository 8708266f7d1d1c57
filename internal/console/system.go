package console

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/go-chi/chi/v5"
)

const (
	// healthTimeout is how long a page waits for something to say how it is.
	healthTimeout = 3 * time.Second
	// statusLasts is how long what the ledger says of itself is told to others too.
	statusLasts = 3 * time.Second
	// Beyond these something is to be looked at.
	slowDatabase   = 250 * time.Millisecond
	shortLogin     = 5 * time.Minute
	oldCheckpoint  = time.Minute
	oldBundle      = time.Hour
	mostUnsigned   = 1000
	wordWell       = "well"
	wordBad        = "not well"
	wordLookAt     = "look at it"
	wordUnanswered = "does not answer"
)

// Vault tells how Vault is doing, and which keys sign. Status is broker.ErrVaultUnavailable when it does not answer.
type Vault interface {
	Status(ctx context.Context) (broker.VaultStatus, error)
	SigningKeys() []broker.SigningKey
}

// Bundle is how the keys of one trust domain are. Problem is empty while the last fetch went well.
type Bundle struct {
	TrustDomain string
	Fetched     time.Time
	Problem     string
}

func (c *Console) systemRoutes(mux chi.Router) { mux.Get("/system", c.visit(c.system)) }

// part is one thing that Brevet needs: how it is in a word, what is known of it, and what to do when it is not well.
type part struct {
	Name, Word string
	Facts      []string
	Next       string
}

// Well tells whether there is nothing to do.
func (p part) Well() bool { return p.Word == wordWell }

// systemView is how all parts are.
type systemView struct {
	Parts   []part
	Keys    []broker.SigningKey
	Trouble int // parts that are not well
	// Everywhere tells whether the reader may know of all trust domains.
	Everywhere bool
}

// system shows auditors and admins how Brevet is doing.
func (c *Console) system(r *http.Request, who *visitor) (view, error) {
	if !who.Audits() && !who.Administers() {
		return view{}, errNotAllowed
	}
	ctx, cancel := context.WithTimeout(r.Context(), healthTimeout)
	defer cancel()
	v := systemView{Everywhere: c.readsCatalogue(who) == nil}
	v.Parts = append(c.ledgerParts(ctx, v.Everywhere), c.vaultPart(ctx))
	if c.cfg.Bundles != nil {
		for _, b := range c.cfg.Bundles() {
			if touches(who.Auditor, b.TrustDomain) || touches(who.Admin, b.TrustDomain) {
				v.Parts = append(v.Parts, bundlePart(b, c.cfg.Now()))
			}
		}
	}
	v.Keys = c.cfg.Vault.SigningKeys()
	for _, p := range v.Parts {
		if !p.Well() {
			v.Trouble++
		}
	}
	return view{page: "system", title: "System", data: v}, nil
}

// touches tells whether something of a trust domain is within reach.
func touches(reach broker.Reach, domain string) bool {
	return slices.Contains(reach.TrustDomains, domain) || slices.ContainsFunc(reach.Within, func(prefix string) bool {
		return strings.HasPrefix(prefix, "spiffe://"+domain+"/")
	})
}

// lately is what the ledger has last said of itself. It counts for that, so everybody who looks within some seconds is told the
// same. The zero value is ready.
type lately struct {
	mu     sync.Mutex
	asked  time.Time
	status broker.LedgerStatus
	err    error
}

// ask returns what was said, and asks again once that is old. It waits on for who asks no more: others wait for the same.
func (l *lately) ask(ctx context.Context, of Log, now func() time.Time) (broker.LedgerStatus, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if since := now().Sub(l.asked); since < 0 || since >= statusLasts {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), healthTimeout)
		defer cancel()
		l.status, l.err = of.Status(ctx)
		l.asked = now()
	}
	return l.status, l.err
}

// ledgerParts are PostgreSQL, and what is known by asking it. How much there is in all trust domains together is told to who may
// know it of each.
func (c *Console) ledgerParts(ctx context.Context, everywhere bool) []part {
	s, err := c.lately.ask(ctx, c.cfg.Ledger, c.cfg.Now)
	if err != nil {
		return []part{{"PostgreSQL", wordUnanswered, nil, "Nothing is issued, decided or ended without it. Look at the server and the connections to it; what was ordered goes on when it is back."}}
	}
	postgres := part{"PostgreSQL", wordWell, []string{
		"version " + s.Version, fmt.Sprintf("answered in %s", s.RoundTrip.Round(10*time.Microsecond)),
	}, ""}
	if everywhere {
		postgres.Facts = append(postgres.Facts, fmt.Sprintf("%d entries, %s on disk", s.Entries, megabytes(s.Bytes)))
	}
	switch {
	case s.RoundTrip > slowDatabase:
		postgres.Word, postgres.Next = wordLookAt, "It takes long to answer, and so does every request. Look at its load and at the network."
	case !s.Primary:
		postgres.Facts = append(postgres.Facts, "what was asked is a standby")
	}
	parts := []part{postgres, c.checkpointPart(s), sweeperPart(s)}
	if everywhere {
		parts = append(parts, unrevokedPart(s))
	}
	return parts
}

func (c *Console) checkpointPart(s broker.LedgerStatus) part {
	p := part{"Checkpoint", wordWell, []string{fmt.Sprintf("signs for %d entries, %s", s.Checkpoint.Size, ago(s.Checkpoint.Time, c.cfg.Now()))}, ""}
	behind := s.Entries - s.Checkpoint.Size
	if behind > mostUnsigned || behind > 0 && c.cfg.Now().Sub(s.Checkpoint.Time) > oldCheckpoint {
		p.Word, p.Next = wordBad, "Entries are written and not signed for. Look in the log for why checkpoints fail: mostly the log's key in Vault."
	}
	return p
}

func sweeperPart(s broker.LedgerStatus) part {
	p := part{"Sweeper", wordWell, []string{fmt.Sprintf("term %d, on another replica", s.Sweeper.Term)}, ""}
	switch {
	case !s.Sweeper.Held:
		p.Word, p.Facts, p.Next = wordLookAt, nil, "No replica brings on what is unfinished at this moment. One takes over within seconds: load the page again, and if it stays so look at the log of the replicas."
	case s.Sweeper.Here:
		p.Facts = []string{fmt.Sprintf("term %d, on this replica", s.Sweeper.Term)}
	}
	return p
}

func unrevokedPart(s broker.LedgerStatus) part {
	p := part{"Unrevoked credentials", wordWell, []string{"none"}, ""}
	if s.Unrevoked > 0 {
		p.Word, p.Facts = wordBad, []string{fmt.Sprintf("%d that should be dead and are not known to be", s.Unrevoked)}
		p.Next = "Look at what Vault says of their leases, and at the systems behind them. brevet audit unrevoked lists them."
	}
	return p
}

func (c *Console) vaultPart(ctx context.Context) part {
	s, err := c.cfg.Vault.Status(ctx)
	switch {
	case err != nil:
		return part{"Vault", wordUnanswered, nil, "Nothing dynamic is issued, and neither are JWTs: they are signed there. What was ordered to end goes on when it is back. Look at Vault and at the network to it."}
	case s.Sealed:
		return part{"Vault", "sealed", []string{"version " + s.Version}, "Nothing is issued until it is unsealed. Whoever holds its keys has to unseal it."}
	}
	p := part{"Vault", wordWell, []string{"version " + s.Version, fmt.Sprintf("answered in %s", s.RoundTrip.Round(10*time.Microsecond)), "worked " + ago(s.Worked, c.cfg.Now())}, ""}
	if s.Login == 0 {
		p.Facts = append(p.Facts, "the broker's login does not end")
		return p
	}
	p.Facts = append(p.Facts, "the broker's login lives on for "+lasting(s.Login)+" unless renewed")
	if s.Login < shortLogin {
		p.Word, p.Next = wordLookAt, "The broker's login is about to end. If it is not renewed within a minute, look in the log for why."
	}
	return p
}

func bundlePart(b Bundle, now time.Time) part {
	p := part{"Keys of " + b.TrustDomain, wordWell, []string{"fetched " + ago(b.Fetched, now)}, ""}
	switch {
	case b.Fetched.IsZero():
		p.Word, p.Next = wordBad, "No SVID of this trust domain can be verified: its sandboxes get nothing. Look at the source that the configuration names."
	case b.Problem != "":
		p.Word, p.Next = wordLookAt, "The last fetch failed, and what was fetched before is still used. Look at the source that the configuration names."
		p.Facts = append(p.Facts, b.Problem)
	case now.Sub(b.Fetched) > oldBundle:
		p.Facts = append(p.Facts, "that is long ago, which is well for a file")
	}
	return p
}

func megabytes(n int64) string { return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20)) }

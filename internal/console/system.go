package console

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/go-chi/chi/v5"
)

const (
	// healthTimeout bounds each health check of a page.
	healthTimeout = 3 * time.Second
	// Beyond these thresholds a component is degraded.
	slowDatabase  = 250 * time.Millisecond
	shortLogin    = 5 * time.Minute
	oldCheckpoint = time.Minute
	oldBundle     = time.Hour
	mostUnsigned  = 1000
	stateOK       = "OK"
	stateDegraded = "Degraded"
	stateDown     = "Down"
)

// Vault reports the health of Vault and the signing keys. Status returns broker.ErrVaultUnavailable if Vault does not
// respond.
type Vault interface {
	Status(ctx context.Context) (broker.VaultStatus, error)
	SigningKeys() []broker.SigningKey
}

// Bundle is the state of one trust domain's keys. Problem is empty if the last fetch succeeded.
type Bundle struct {
	TrustDomain string
	Fetched     time.Time
	Problem     string
}

func (c *Console) systemRoutes(mux chi.Router) { mux.Get("/system", c.visit(c.system)) }

// part is the health of one dependency: its state, the known facts, and the next step if it is not OK.
type part struct {
	Name, Word string
	Facts      []string
	Next       string
}

// systemView is the health of all dependencies.
type systemView struct {
	Parts   []part
	Keys    []broker.SigningKey
	Trouble int // parts that are not OK
	// Everywhere reports whether the reader may see data about all trust domains.
	Everywhere bool
}

// system shows auditors and admins the health of Brevet.
func (c *Console) system(r *http.Request, who *visitor) (view, error) {
	if !who.Audits() && !who.Administers() {
		return view{}, errNotAllowed
	}
	return pageSystem.view("Health", c.health(r.Context(), who)), nil
}

// health checks the dependencies. It includes what the visitor may see.
func (c *Console) health(ctx context.Context, who *visitor) systemView {
	ctx, cancel := context.WithTimeout(ctx, healthTimeout)
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
		if p.Word != stateOK {
			v.Trouble++
		}
	}
	return v
}

// touches reports whether any part of a trust domain is within reach.
func touches(reach broker.Reach, domain string) bool {
	return slices.Contains(reach.TrustDomains, domain) || slices.ContainsFunc(reach.Within, func(prefix string) bool {
		return strings.HasPrefix(prefix, "spiffe://"+domain+"/")
	})
}

// ledgerParts returns the health of PostgreSQL and of what depends on it. Totals over all trust domains are only for
// readers who may see all of them.
func (c *Console) ledgerParts(ctx context.Context, everywhere bool) []part {
	s, err := c.ledgerStatus.read(ctx, c.cfg.Now, c.cfg.Ledger.Status)
	if err != nil {
		return []part{{"PostgreSQL", stateDown, nil, "Brevet cannot decide, issue or revoke without it. Check the server and its connections. Pending revocations continue when it responds again."}}
	}
	postgres := part{"PostgreSQL", stateOK, []string{
		"version " + s.Version, fmt.Sprintf("response time %s", s.RoundTrip.Round(10*time.Microsecond)),
	}, ""}
	if everywhere {
		postgres.Facts = append(postgres.Facts, fmt.Sprintf("%d entries, %s on disk", s.Entries, megabytes(s.Bytes)))
	}
	switch {
	case s.RoundTrip > slowDatabase:
		postgres.Word, postgres.Next = stateDegraded, "Responses are slow, which slows every request. Check the load of the server and the network."
	case !s.Primary:
		postgres.Facts = append(postgres.Facts, "connected to a standby")
	}
	parts := []part{postgres, c.checkpointPart(s), sweeperPart(s)}
	if everywhere {
		parts = append(parts, unrevokedPart(s))
	}
	return parts
}

func (c *Console) checkpointPart(s broker.LedgerStatus) part {
	p := part{"Checkpoint", stateOK, []string{fmt.Sprintf("covers %d entries, %s", s.Checkpoint.Size, ago(s.Checkpoint.Time, c.cfg.Now()))}, ""}
	behind := s.Entries - s.Checkpoint.Size
	if behind > mostUnsigned || behind > 0 && c.cfg.Now().Sub(s.Checkpoint.Time) > oldCheckpoint {
		p.Word, p.Next = stateDegraded, "New entries are not covered by a signed checkpoint. Check the log for checkpoint errors; the usual cause is the log key in Vault."
	}
	return p
}

func sweeperPart(s broker.LedgerStatus) part {
	p := part{"Sweeper", stateOK, []string{fmt.Sprintf("term %d, on another replica", s.Sweeper.Term)}, ""}
	switch {
	case !s.Sweeper.Held:
		p.Word, p.Facts, p.Next = stateDegraded, nil, "No replica is running the sweeper. A replica takes over within seconds. Reload the page; if the problem persists, check the logs of the replicas."
	case s.Sweeper.Here:
		p.Facts = []string{fmt.Sprintf("term %d, on this replica", s.Sweeper.Term)}
	}
	return p
}

func unrevokedPart(s broker.LedgerStatus) part {
	p := part{"Unrevoked credentials", stateOK, []string{"none"}, ""}
	if s.Unrevoked > 0 {
		p.Word, p.Facts = stateDegraded, []string{fmt.Sprintf("%d overdue, not confirmed as revoked", s.Unrevoked)}
		p.Next = "Check their leases in Vault and the systems behind them. brevet audit unrevoked lists them."
	}
	return p
}

func (c *Console) vaultPart(ctx context.Context) part {
	s, err := c.cfg.Vault.Status(ctx)
	switch {
	case err != nil:
		return part{"Vault", stateDown, nil, "Brevet cannot issue dynamic credentials or sign JWTs without it. Check Vault and the network. Pending revocations continue when it responds again."}
	case s.Sealed:
		return part{"Vault", stateDown, []string{"sealed", "version " + s.Version}, "Brevet cannot issue credentials until a key holder unseals Vault."}
	}
	p := part{"Vault", stateOK, []string{"version " + s.Version, fmt.Sprintf("response time %s", s.RoundTrip.Round(10*time.Microsecond)), "last success " + ago(s.Worked, c.cfg.Now())}, ""}
	if s.Login == 0 {
		p.Facts = append(p.Facts, "the broker's login does not expire")
		return p
	}
	p.Facts = append(p.Facts, "the broker's login expires in "+lasting(s.Login)+" unless renewed")
	if s.Login < shortLogin {
		p.Word, p.Next = stateDegraded, "The broker's login expires soon. If it is not renewed within a minute, check the log."
	}
	return p
}

func bundlePart(b Bundle, now time.Time) part {
	p := part{"Trust bundle of " + b.TrustDomain, stateOK, []string{"fetched " + ago(b.Fetched, now)}, ""}
	switch {
	case b.Fetched.IsZero():
		p.Word, p.Next = stateDown, "Brevet cannot verify SVIDs of this trust domain, so its sandboxes get no credentials. Check the bundle source in the configuration."
	case b.Problem != "":
		p.Word, p.Next = stateDegraded, "The last fetch failed; Brevet still uses the previous bundle. Check the bundle source in the configuration."
		p.Facts = append(p.Facts, b.Problem)
	case now.Sub(b.Fetched) > oldBundle:
		p.Facts = append(p.Facts, "not refreshed for more than an hour, which is normal for a file")
	}
	return p
}

func megabytes(n int64) string { return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20)) }

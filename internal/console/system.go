package console

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/audit"
	"golang.org/x/mod/sumdb/tlog"
)

const (
	// healthTimeout bounds each health check of a page.
	healthTimeout = 3 * time.Second
	// Beyond these thresholds a component is degraded.
	slowDatabase  = 250 * time.Millisecond
	shortLogin    = 5 * time.Minute
	oldCheckpoint = time.Minute
	oldBundle     = time.Hour
	maxUnsigned   = 1000
	stateOK       = "OK"
	stateDegraded = "Degraded"
	stateDown     = "Down"
	diskFull      = "its disk is full"
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
	return pageSystem.view("Health", c.health(r.Context(), who)), nil
}

// health checks the dependencies. It includes what the visitor may see.
func (c *Console) health(ctx context.Context, who *visitor) systemView {
	ctx, cancel := context.WithTimeout(ctx, healthTimeout)
	defer cancel()
	v := systemView{Everywhere: c.readsCatalogue(who)}
	v.Parts = append(c.ledgerParts(ctx, v.Everywhere), c.vaultPart(ctx))
	if c.cfg.Bundles != nil {
		for _, b := range c.cfg.Bundles() {
			if touches(who.Auditor, b.TrustDomain) || touches(who.Admin, b.TrustDomain) {
				v.Parts = append(v.Parts, c.bundlePart(b))
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
		if errors.Is(err, broker.ErrLedgerFull) {
			return []part{{"PostgreSQL", stateDown, []string{diskFull}, "PostgreSQL does not respond since its disk became full. Free space on its volume, and check that it starts again. Brevet continues by itself within seconds."}}
		}
		return []part{{"PostgreSQL", stateDown, nil, "Brevet cannot decide, issue or revoke without it. Check the server and its connections. Pending revocations continue when it responds again."}}
	}
	postgres := part{"PostgreSQL", stateOK, []string{
		"version " + s.Version, fmt.Sprintf("response time %s", s.RoundTrip.Round(10*time.Microsecond)),
	}, ""}
	if everywhere {
		postgres.Facts = append(postgres.Facts, fmt.Sprintf("%d entries, %.1f MiB on disk", s.Entries, float64(s.Bytes)/(1<<20)))
	}
	switch {
	case s.Full:
		postgres.Word, postgres.Facts = stateDown, append(postgres.Facts, diskFull)
		postgres.Next = "Brevet issues nothing, and may be unable to record revocations. Free space on the volume of PostgreSQL, or enlarge it. Brevet continues by itself within seconds."
	case s.RoundTrip > slowDatabase:
		postgres.Word, postgres.Next = stateDegraded, "Responses are slow, which slows every request. Check the load of the server and the network."
	case !s.Primary:
		postgres.Facts = append(postgres.Facts, "connected to a standby")
	}
	checkpoint := part{"Checkpoint", stateOK, []string{fmt.Sprintf("covers %d entries, %s", s.Checkpoint.Size, ago(s.Checkpoint.Time, c.cfg.Now()))}, ""}
	behind := s.Entries - s.Checkpoint.Size
	if behind > maxUnsigned || behind > 0 && c.cfg.Now().Sub(s.Checkpoint.Time) > oldCheckpoint {
		checkpoint.Word = stateDegraded
		checkpoint.Next = "New entries are not covered by a signed checkpoint. Check the log for checkpoint errors; the usual cause is the log key in Vault."
	}
	sweeper := part{"Sweeper", stateOK, []string{fmt.Sprintf("term %d, on another replica", s.Sweeper.Term)}, ""}
	switch {
	case !s.Sweeper.Held:
		sweeper.Word, sweeper.Facts = stateDegraded, nil
		sweeper.Next = "No replica is running the sweeper. A replica takes over within seconds. Reload the page; if the problem persists, check the logs of the replicas."
	case s.Sweeper.Here:
		sweeper.Facts = []string{fmt.Sprintf("term %d, on this replica", s.Sweeper.Term)}
	}
	if !everywhere {
		return []part{postgres, checkpoint, sweeper}
	}
	unrevoked := part{"Unrevoked credentials", stateOK, []string{"none"}, ""}
	if s.Unrevoked > 0 {
		unrevoked.Word, unrevoked.Facts = stateDegraded, []string{fmt.Sprintf("%d overdue, not confirmed as revoked", s.Unrevoked)}
		unrevoked.Next = "Check their leases in Vault and the systems behind them. brevet audit unrevoked lists them."
	}
	return []part{postgres, checkpoint, sweeper, unrevoked}
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

func (c *Console) bundlePart(b Bundle) part {
	p := part{"Trust bundle of " + b.TrustDomain, stateOK, []string{"fetched " + ago(b.Fetched, c.cfg.Now())}, ""}
	switch {
	case b.Fetched.IsZero():
		p.Word, p.Next = stateDown, "Brevet cannot verify SVIDs of this trust domain, so its sandboxes get no credentials. Check the bundle source in the configuration."
	case b.Problem != "":
		p.Word, p.Next = stateDegraded, "The last fetch failed; Brevet still uses the previous bundle. Check the bundle source in the configuration."
		p.Facts = append(p.Facts, b.Problem)
	case c.cfg.Now().Sub(b.Fetched) > oldBundle:
		p.Facts = append(p.Facts, "not refreshed for more than an hour, which is normal for a file")
	}
	return p
}

// Log is the part of the ledger that auditors verify. Its errors are audit.ErrNotYet if no checkpoint covers the entries
// yet, broker.ErrNotFound and broker.ErrLedgerUnavailable.
type Log interface {
	// Checkpoint returns the latest signed checkpoint with cosignatures of at least this many witnesses.
	Checkpoint(ctx context.Context, witnesses int) (string, error)
	ProveGrowth(ctx context.Context, from, to int64) (of int64, proof tlog.TreeProof, err error)
	Entries(ctx context.Context, from int64, limit int) ([]audit.LogEntry, error)
	Status(ctx context.Context) (broker.LedgerStatus, error)
}

// ledgerView is the state of the log and its signed checkpoint.
type ledgerView struct {
	Status     broker.LedgerStatus
	Note       string // empty if there is no checkpoint yet
	Checkpoint audit.Checkpoint
	Keys       []string
	Entries    []entryView
	Hidden     bool // whether the reader may not see the entries
}

// Lag returns the number of entries that no checkpoint covers yet.
func (v ledgerView) Lag() int64 { return max(0, v.Status.Entries-v.Checkpoint.N) }

// Root returns the root hash of the checkpoint.
func (v ledgerView) Root() string { return v.Checkpoint.Hash.String() }

// Signed returns what the browser verifies itself: the checkpoint and the public keys of the log.
func (v ledgerView) Signed() any {
	return struct {
		Note string   `json:"note"`
		Keys []string `json:"keys"` // empty if they are unavailable
	}{v.Note, v.Keys}
}

// entryView is one entry without its content.
type entryView struct {
	Index int64
	Kind  string
	Time  time.Time
	Leaf  string
}

// ledger shows the log. The browser checks that the log continues what it saw on earlier visits.
func (c *Console) ledger(r *http.Request, who *visitor) (view, error) {
	status, err := c.cfg.Ledger.Status(r.Context())
	if err != nil {
		return view{}, err
	}
	v := ledgerView{Status: status}
	if v.Note, err = c.cfg.Ledger.Checkpoint(r.Context(), 0); err == nil {
		text, _, _ := strings.Cut(v.Note, "\n\n")
		v.Checkpoint, err = audit.ParseCheckpoint(text + "\n")
	}
	if err != nil && status.Checkpoint.Size > 0 {
		return view{}, err
	}
	if v.Keys, err = c.cfg.LogKeys.Keys(r.Context()); err != nil {
		c.cfg.Log.WarnContext(r.Context(), "log keys unavailable", "error", err) // the page says so
	}
	if v.Hidden = !c.overAll(who.Auditor.TrustDomains); v.Hidden {
		return pageLedger.view("Ledger", v), nil
	}
	const most = 20
	entries, err := c.cfg.Ledger.Entries(r.Context(), max(0, status.Entries-most), most)
	for _, e := range slices.Backward(entries) {
		var body struct {
			Kind string    `json:"kind"`
			Time time.Time `json:"time"`
		}
		if err := json.Unmarshal([]byte(e.Body), &body); err != nil {
			body.Kind = "unreadable"
		}
		v.Entries = append(v.Entries, entryView{e.Index, body.Kind, body.Time, tlog.RecordHash([]byte(e.Body)).String()})
	}
	return pageLedger.view("Ledger", v), err
}

// growth returns the proof that the log of one size is a prefix of the log of another size (RFC 6962, 2.1.2).
func (c *Console) growth(w http.ResponseWriter, r *http.Request, _ *visitor) error {
	from, noFrom := strconv.ParseInt(r.URL.Query().Get("from"), 10, 64)
	to, noTo := strconv.ParseInt(r.URL.Query().Get("to"), 10, 64)
	if noFrom != nil || noTo != nil || from < 1 || to < from {
		return errForm
	}
	_, proof, err := c.cfg.Ledger.ProveGrowth(r.Context(), from, to)
	if err != nil {
		return err
	}
	hashes := make([]string, 0, len(proof))
	for _, h := range proof {
		hashes = append(hashes, h.String())
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(hashes) // the client may have disconnected
	return nil
}

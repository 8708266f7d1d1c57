package faults_test

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/internal/testkit"
	"github.com/brevet-dev/brevet/internal/testkit/clouds"
	"github.com/brevet-dev/brevet/scopes"
	"github.com/google/uuid"
	"github.com/hashicorp/vault/api"
	"github.com/jackc/pgx/v5"
)

// grace is how long a credential without a record may stay alive.
const grace = 60 * time.Second

// row is the current state of one record in the database.
type row struct {
	ID, Status, Kind string
	Leased, Static   bool
	Accessor, Lease  string
	Name             string
	StatusTime       time.Time
	ExpiresAt        time.Time
	Detail           string
}

func (r row) begun() time.Time { return begunAt(r.ID) }

// mayLive reports whether a credential of the record may be alive in Vault.
func (r row) mayLive() bool { return r.Status == "issued" || r.Status == "revoking" }

// irrevocable reports whether another system accepts the credential until it expires, and nobody can end it.
func (r row) irrevocable() bool { return r.Kind == "vault" && !r.Leased && !r.Static }

// elsewhere reports whether another system may accept a credential that was lost.
func (r row) elsewhere() bool {
	return r.lostAtGitHub() || r.irrevocable() && r.Status == "unknown" && time.Now().Before(r.ExpiresAt) && (r.Accessor != "" || r.Detail == "unfinished")
}

// proof is what shows that the credential is alive: the accessor of its token in Vault, its lease if it has no token, or the hash of
// its token of GitHub.
func (r row) proof() string {
	switch {
	case r.Kind == scopes.KindGitHub:
		return r.Name
	case r.Accessor == "":
		return r.Lease
	default:
		return r.Accessor
	}
}

// lostAtGitHub reports whether GitHub may have made a token that nobody has: the record says so for an hour.
func (r row) lostAtGitHub() bool {
	return r.Kind == scopes.KindGitHub && (r.Status == "unknown" && r.Lease != "" || r.Status == "revoking" && r.Lease == "") &&
		time.Since(r.begun()) < time.Hour+2*time.Minute
}

func begunAt(id string) time.Time {
	parsed, err := uuid.Parse(id)
	if err != nil {
		return time.Time{}
	}
	return time.Unix(parsed.Time().UnixTime())
}

// inventory compares the record with Vault and with the target database. It also knows which credentials were delivered.
type inventory struct {
	stack *testkit.Stack
	vault *api.Client
	// target is the database that logins are created in.
	target string
	// hub is the double of GitHub.
	hub *testkit.GitHub
	// engines are the engines aws and kubernetes.
	engines *clouds.Engines
	// since is when the world began. What is older than that belongs to another one.
	since time.Time

	mu        sync.Mutex
	delivered map[string]bool
}

func (e *inventory) deliver(id string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.delivered[id] = true
}

func (e *inventory) wasDelivered(id string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.delivered[id]
}

// rows reads the records of one sandbox, or of all if subject is empty.
func (e *inventory) rows(ctx context.Context, t testing.TB, subject string) []row {
	t.Helper()
	conn, err := pgx.Connect(ctx, e.stack.DB.AdminURL)
	if err != nil {
		t.Fatalf("connecting to the ledger: %v", err)
	}
	defer func() { _ = conn.Close(ctx) }()
	found, err := conn.Query(ctx, `
		SELECT id::text, status, coalesce(credential_kind, '') AS kind, coalesce(leased, false) AS leased, static,
			coalesce(vault_accessor, '') AS accessor, coalesce(vault_lease, '') AS lease,
			coalesce(credential_name, '') AS name, status_time, expires_at, coalesce(status_detail, '') AS detail
		FROM issuances WHERE decision = 'allow' AND ($1 = '' OR spiffe_id = $1) ORDER BY entry_index`, subject)
	if err != nil {
		t.Fatalf("reading the records: %v", err)
	}
	rows, err := pgx.CollectRows(found, pgx.RowToStructByName[row])
	if err != nil {
		t.Fatalf("reading the records: %v", err)
	}
	return rows
}

// check is the invariant checker. It checks that the ledger is whole (I8, I13), and that nothing is unfinished for longer than
// the grace. Of what is older than that, nothing may be alive without a record of its delivery (I2), nor dead with one (I6). It
// returns the violations.
func (e *inventory) check(t testing.TB) []string {
	t.Helper()
	ctx := t.Context()
	e.stack.DB.Check(t)
	rows := e.rows(ctx, t, "")
	byID, byAccessor, byLease, byName := map[string]row{}, map[string]row{}, map[string]row{}, map[string]row{}
	for _, r := range rows {
		byID[r.ID], byAccessor[r.Accessor], byLease[r.Lease], byName[r.Name] = r, r, r, r
	}
	var wrong []string
	tokens, leases := e.tokens(ctx, t), e.leases(ctx, t)
	for _, tok := range tokens {
		if r, ok := byAccessor[tok.name]; e.judges(tok) && (!ok || !r.mayLive()) {
			wrong = append(wrong, fmt.Sprintf("token %s lives, its record %s says %q", tok.name, tok.issuance, byID[tok.issuance].Status))
		}
	}
	for _, l := range leases {
		if r, ok := byLease[l.name]; e.judges(l) && (!ok || !r.mayLive()) {
			wrong = append(wrong, fmt.Sprintf("lease %s lives without a record, since %s", l.name, l.since.Format(time.TimeOnly)))
		}
	}
	for _, login := range e.logins(ctx, t) {
		if r, ok := byName[login.name]; e.judges(login) && (!ok || !r.mayLive()) {
			wrong = append(wrong, fmt.Sprintf("database user %s can log in, its record says %q", login.name, byID[login.issuance].Status))
		}
	}
	for _, cert := range e.certificates(ctx, t) {
		if r, ok := byName[cert.name]; e.judges(cert) && (!ok || !r.mayLive()) {
			wrong = append(wrong, fmt.Sprintf("certificate %s is valid, its record says %q", cert.name, r.Status))
		}
	}
	return slices.Concat(wrong, e.checkFarSides(byID, byName), e.checkGitHub(rows, byName), e.checkRows(rows, slices.Concat(tokens, leases)))
}

// judges reports whether a credential is old enough to be judged, and of this world.
func (e *inventory) judges(l living) bool {
	return time.Since(l.since) > grace && l.since.After(e.since)
}

// checkFarSides checks what AWS and the cluster accept. Nobody can end a session of AWS, so that its record has to have its hour, and
// must not say that it never was or is over.
func (e *inventory) checkFarSides(byID, byName map[string]row) []string {
	var wrong []string
	for _, s := range e.engines.STS.Sessions() {
		id := issuanceID.FindString(s.Name)
		r, ok := byID[id]
		switch {
		case !e.judges(living{s.Name, id, s.Began}):
		case !ok || !slices.Contains([]string{"issued", "unknown", "revoked", "released"}, r.Status):
			wrong = append(wrong, fmt.Sprintf("session %s lives, its record says %q", s.Name, r.Status))
		case s.Expires.After(r.ExpiresAt.Add(10 * time.Second)):
			wrong = append(wrong, fmt.Sprintf("session %s lives until %s, its record says %s", s.Name, s.Expires, r.ExpiresAt))
		}
	}
	for _, name := range slices.Concat(e.engines.Cluster.Accounts("shop"), e.engines.Cluster.Bindings("shop")) {
		id := issuanceID.FindString(name)
		if r := byName[name]; id != "" && e.judges(living{name, id, begunAt(id)}) && !r.mayLive() {
			wrong = append(wrong, fmt.Sprintf("service account %s lives, its record says %q", name, byID[id].Status))
		}
	}
	return wrong
}

// checkGitHub checks that every living token of GitHub has a record that says so. A token that was lost on its way has no name in a
// record, but a record of its own that says that one may live.
func (e *inventory) checkGitHub(rows []row, byName map[string]row) []string {
	var wrong []string
	unnamed, explained := 0, 0
	for _, r := range rows {
		if r.lostAtGitHub() {
			explained++
		}
	}
	for _, tok := range e.hub.Live() {
		r, ok := byName[tok.Hashed]
		switch {
		case !e.judges(living{tok.Hashed, "", tok.Made}):
		case !ok:
			unnamed++
		case !r.mayLive():
			wrong = append(wrong, fmt.Sprintf("token %s of GitHub lives, its record says %q", tok.Hashed, r.Status))
		}
	}
	if unnamed > explained {
		wrong = append(wrong, fmt.Sprintf("%d tokens of GitHub live that no record names, and %d records say that one may", unnamed, explained))
	}
	return wrong
}

func (e *inventory) checkRows(rows []row, inVault []living) []string {
	alive := map[string]bool{}
	for _, tok := range e.hub.Live() {
		alive[tok.Hashed] = true
	}
	for _, l := range inVault {
		alive[l.name] = true
	}
	var wrong []string
	for _, r := range rows {
		if time.Since(r.begun()) < grace || time.Since(r.StatusTime) < grace {
			continue
		}
		switch {
		case r.elsewhere():
		case r.Status == "intent", r.Status == "unknown", r.Status == "revoking":
			wrong = append(wrong, fmt.Sprintf("%s is %s for %s", r.ID, r.Status, time.Since(r.StatusTime)))
		case r.Status == "issued" && r.Leased && !e.wasDelivered(r.ID):
			wrong = append(wrong, fmt.Sprintf("%s (%s) is issued for %s, alive in Vault: %t, until %s, and was never delivered",
				r.ID, r.Kind, time.Since(r.StatusTime).Round(time.Second), alive[r.proof()], r.ExpiresAt.Format(time.TimeOnly)))
		case r.Status == "issued" && r.Leased && time.Since(r.ExpiresAt) > grace:
			wrong = append(wrong, fmt.Sprintf("%s (%s) is past its time and recorded as issued", r.ID, r.Kind))
		// Vault may end a credential up to two seconds before its time, and the lists are as old as their reading.
		case r.Status == "issued" && r.Leased && time.Until(r.ExpiresAt) > 10*time.Second && !alive[r.proof()]:
			wrong = append(wrong, fmt.Sprintf("%s (%s) is recorded as issued and dead in Vault", r.ID, r.Kind))
		}
	}
	return wrong
}

// living is a credential issued by Brevet that Vault or the target database holds.
type living struct {
	name     string
	issuance string
	since    time.Time
}

func (e *inventory) tokens(ctx context.Context, t testing.TB) []living {
	t.Helper()
	var found []living
	for _, accessor := range e.list(ctx, t, "auth/token/accessors") {
		secret := e.token(ctx, t, accessor)
		if secret == nil {
			continue // it has just ended
		}
		meta, _ := secret.Data["meta"].(map[string]any)
		issuance, _ := meta["issuance"].(string)
		if issuance == "" {
			continue // not ours
		}
		found = append(found, living{accessor, issuance, begunAt(issuance)})
	}
	return found
}

// token returns what Vault knows of a token, or nil if it has ended.
func (e *inventory) token(ctx context.Context, t testing.TB, accessor string) *api.Secret {
	t.Helper()
	return told(ctx, t, "token "+accessor, func() (*api.Secret, error) {
		return e.vault.Logical().WriteWithContext(ctx, "auth/token/lookup-accessor", map[string]any{"accessor": accessor})
	})
}

func (e *inventory) leases(ctx context.Context, t testing.TB) []living {
	t.Helper()
	var found []living
	const prefix = "database/creds/reporting/"
	for _, id := range e.list(ctx, t, "sys/leases/lookup/"+prefix) {
		secret := told(ctx, t, "lease "+id, func() (*api.Secret, error) {
			return e.vault.Logical().WriteWithContext(ctx, "sys/leases/lookup", map[string]any{"lease_id": prefix + id})
		})
		if secret == nil {
			continue
		}
		text, _ := secret.Data["issue_time"].(string)
		since, err := time.Parse(time.RFC3339Nano, text)
		until, _ := secret.Data["expire_time"].(string)
		expires, errToo := time.Parse(time.RFC3339Nano, until)
		if err != nil || errToo != nil {
			t.Errorf("lease %s: from %q until %q", id, text, until)
		}
		if time.Now().After(expires) {
			continue // Vault retries the revocation with growing delays; the check of logins finds out whether it still works
		}
		found = append(found, living{prefix + id, "", since})
	}
	return found
}

var issuanceID = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}`)

// logins returns the database users created for Brevet that could log in now.
func (e *inventory) logins(ctx context.Context, t testing.TB) []living {
	t.Helper()
	conn, err := pgx.Connect(ctx, e.target)
	if err != nil {
		t.Fatalf("connecting to the target database: %v", err)
	}
	defer func() { _ = conn.Close(ctx) }()
	found, err := conn.Query(ctx, `
		SELECT rolname FROM pg_roles WHERE rolcanlogin AND rolvaliduntil > now() AND rolname ~ '^v-token-.*-[0-9]{10}$'`)
	if err != nil {
		t.Fatal(err)
	}
	names, err := pgx.CollectRows(found, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	var logins []living
	for _, name := range names {
		made, err := strconv.ParseInt(name[strings.LastIndex(name, "-")+1:], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		logins = append(logins, living{name, issuanceID.FindString(name), time.Unix(made, 0)})
	}
	return logins
}

// certificates returns the certificates of the web role that are not revoked.
func (e *inventory) certificates(ctx context.Context, t testing.TB) []living {
	t.Helper()
	var found []living
	for _, serial := range e.list(ctx, t, "pki/certs") {
		secret := told(ctx, t, "certificate "+serial, func() (*api.Secret, error) {
			return e.vault.Logical().ReadWithContext(ctx, "pki/cert/"+serial)
		})
		if secret == nil || fmt.Sprint(secret.Data["revocation_time"]) != "0" {
			continue
		}
		text, _ := secret.Data["certificate"].(string)
		block, _ := pem.Decode([]byte(text))
		if block == nil {
			t.Errorf("certificate %s: got %q", serial, text)
			continue
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			t.Errorf("certificate %s: %v", serial, err)
			continue
		}
		if cert.IsCA || time.Now().After(cert.NotAfter) {
			continue
		}
		// Vault dates certificates back by half a minute.
		found = append(found, living{name: strings.ReplaceAll(serial, "-", ":"), since: cert.NotBefore.Add(30 * time.Second)})
	}
	return found
}

// told returns Vault's answer about an object, or nil if the object is gone. If Vault is busy or down, told asks again, and fails
// the test after a while.
func told(ctx context.Context, t testing.TB, what string, ask func() (*api.Secret, error)) *api.Secret {
	t.Helper()
	for began := time.Now(); ; pauseFor(ctx, 200*time.Millisecond) {
		secret, err := ask()
		switch {
		case err == nil, gone(err):
			return secret
		case ctx.Err() != nil || time.Since(began) > patience(5*time.Second):
			t.Errorf("whether the %s lives could not be told: %v", what, err)
			return nil
		}
	}
}

// gone reports whether Vault answered that the object does not exist, or that the caller may not see it.
func gone(err error) bool {
	said, ok := errors.AsType[*api.ResponseError](err)
	return ok && slices.Contains([]int{http.StatusBadRequest, http.StatusForbidden, http.StatusNotFound}, said.StatusCode)
}

func (e *inventory) list(ctx context.Context, t testing.TB, path string) []string {
	t.Helper()
	secret, err := e.vault.Logical().ListWithContext(ctx, path)
	if err != nil {
		t.Fatalf("listing %s in Vault: %v", path, err)
	}
	if secret == nil {
		return nil
	}
	var keys []string
	listed, _ := secret.Data["keys"].([]any)
	for _, key := range listed {
		if text, ok := key.(string); ok {
			keys = append(keys, text)
		}
	}
	return keys
}

package console

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/broker/approval"
	"github.com/brevet-dev/brevet/internal/passkey"
	"github.com/brevet-dev/brevet/internal/secret"
	"github.com/brevet-dev/brevet/scopes"
	"github.com/go-chi/chi/v5"
)

// vote records a vote on a request and on the similar requests that the voter has ticked.
func (c *Console) vote(r *http.Request, who *visitor) (done, error) {
	id, err := caseID(r)
	if err != nil {
		return done{}, err
	}
	votes, err := votesOf(r, id)
	if err != nil {
		return done{}, &returning{err, "/approvals/" + id}
	}
	after, err := c.cast(r, who, votes[0])
	if err != nil {
		return done{}, &returning{err, "/approvals/" + id}
	}
	notice, also := c.said(after, votes[0]), votes[1:]
	if len(also) == 0 {
		return done{"/approvals", notice}, nil
	}
	// Each vote contains the hash that the voter saw, so a request that has changed gets no vote. A vote without permission is
	// recorded as a refusal, as if it had been cast alone.
	n := 0
	for _, b := range also {
		if _, err := c.cast(r, who, b); err != nil {
			if t := troubleOf(err); t.status == http.StatusForbidden {
				c.refuse(r, who, t, err)
			}
			c.cfg.Log.WarnContext(r.Context(), "one of several votes was not recorded", "request", b.Request, "error", err)
			continue
		}
		n++
	}
	noun := "requests"
	if n == 1 {
		noun = "request"
	}
	notice += fmt.Sprintf(" The vote also applies to %d similar %s", n, noun)
	if n < len(also) {
		notice += fmt.Sprintf("; %d had changed or were already decided", len(also)-n)
	}
	return done{"/approvals", notice + "."}, nil
}

// cast records one vote. A denial after the decision still takes effect, so cast returns no error for it.
func (c *Console) cast(r *http.Request, who *visitor, b broker.VoteCast) (*broker.ApprovalRequest, error) {
	after, err := c.cfg.Broker.Vote(r.Context(), who.Person, b)
	if after != nil && after.Voted && c.cfg.Voted != nil {
		c.cfg.Voted(after, b.Verdict)
	}
	if errors.Is(err, broker.ErrDecided) && after != nil && after.Voted {
		return after, nil
	}
	return after, err
}

// votesOf parses the votes in a form: first the one on the request itself, then those on similar requests.
func votesOf(r *http.Request, id string) ([]broker.VoteCast, error) {
	b := broker.VoteCast{
		Request: id, Verdict: approval.Verdict(r.PostForm.Get("verdict")), Note: strings.TrimSpace(r.PostForm.Get("note")),
		Covers: approval.Cover(cmp.Or(r.PostForm.Get("covers"), string(approval.CoverRequest))), Assertion: []byte(r.PostForm.Get("assertion")),
	}
	switch b.Verdict {
	case approval.Approve, approval.Deny, approval.BreakGlass:
	default:
		return nil, errForm
	}
	if b.Covers != approval.CoverRequest && (b.Covers != approval.CoverTask || b.Verdict != approval.Approve) {
		return nil, errForm
	}
	if err := checkText(b.Note); err != nil {
		return nil, err
	}
	var err error
	if b.Hash, err = hashOf(r.PostForm.Get("hash")); err != nil {
		return nil, err
	}
	also := r.PostForm["also"]
	if len(also) > maxAsks || b.Verdict == approval.BreakGlass && len(also) > 0 {
		return nil, errForm
	}
	votes := []broker.VoteCast{b}
	for _, text := range also {
		other := b
		other.Assertion = nil // an assertion signs one request only
		var hash string
		other.Request, hash, _ = strings.Cut(text, ".")
		if other.Hash, err = hashOf(hash); err != nil {
			return nil, err
		}
		votes = append(votes, other)
	}
	return votes, nil
}

// checkText checks the length of a free text, as the API does, and keeps secrets out of the record (H82).
func checkText(text string) error {
	switch {
	case len(text) > 1000:
		return errForm
	case secret.Shaped(text):
		return errSecretText
	}
	return nil
}

func hashOf(text string) (hash [32]byte, err error) {
	if n, err := hex.Decode(hash[:], []byte(short(text, 2*len(hash)))); err != nil || n != len(hash) {
		return hash, errForm
	}
	return hash, nil
}

// said describes the effect of a vote, and what is still required.
func (c *Console) said(after *broker.ApprovalRequest, b broker.VoteCast) string {
	alike := 0 // votes
	for _, v := range after.VotesCast {
		if v.Verdict == b.Verdict {
			alike++
		}
	}
	what := c.cfg.Broker.Title(after.Scope, after.Catalogue)
	if what = cmp.Or(what, after.Scope); after.Resource != "" {
		what += ", " + short(after.Resource, 80)
	}
	switch {
	case !after.Voted:
		return "You had already voted this way; nothing has changed. (" + what + ")"
	case b.Verdict == approval.Deny && after.Status == broker.StatusRedeemed:
		return "Denied: the issued credential is revoked. (" + what + ")"
	case b.Verdict == approval.Deny:
		return "Denied: no credential is issued. (" + what + ")"
	case after.Status == broker.StatusApproved && b.Verdict == approval.BreakGlass:
		return "Approved by break-glass: the sandbox can redeem the request now. (" + what + ")"
	case after.Status == broker.StatusApproved:
		return "Approved: the sandbox can redeem the request now. (" + what + ")"
	case b.Verdict == approval.BreakGlass:
		return fmt.Sprintf("Break-glass vote recorded, and everybody is notified: %d of %d of %s have approved, %d more required. (%s)",
			alike, scopes.BreakGlassQuorum, after.BreakGlass, scopes.BreakGlassQuorum-alike, what)
	default:
		return fmt.Sprintf("Approval recorded: %d of %d. %d more of %s required. (%s)",
			alike, after.ApprovalQuorum, after.ApprovalQuorum-alike, after.ApprovalGroup, what)
	}
}

const (
	// keyChallenge is the session key for a registration in progress, and challengeLife is how long that may take.
	keyChallenge  = "challenge"
	challengeLife = 5 * time.Minute
)

// passkeysPage lists passkeys. Most is how many a person may have. Fresh says that the login is recent enough for a first one.
type passkeysPage struct {
	Passkeys   []broker.Passkey
	Configured bool
	Fresh      bool
	Site       string
	Most       int
}

// passkeys lists the visitor's passkeys.
func (c *Console) passkeys(r *http.Request, who *visitor) (view, error) {
	has, err := c.cfg.Broker.Passkeys(r.Context(), who.Person)
	if err != nil {
		return view{}, err
	}
	site := c.cfg.Broker.RelyingParty()
	return pagePasskeys.view("Your passkeys", passkeysPage{has, site.Configured(), c.cfg.Broker.FreshLogin(who.Person), site.ID, broker.MaxPasskeys}), nil
}

// credential names a passkey to a browser (WebAuthn's PublicKeyCredentialDescriptorJSON).
type credential struct {
	Type       string   `json:"type"`
	ID         string   `json:"id"`
	Transports []string `json:"transports,omitempty"`
}

func inBase64(b []byte) string { return base64.RawURLEncoding.EncodeToString(b) }

// challengePasskey starts a registration. It stores the challenge in the session, so only this session can use it.
func (c *Console) challengePasskey(w http.ResponseWriter, r *http.Request, who *visitor) error {
	site := c.cfg.Broker.RelyingParty()
	if !site.Configured() {
		return broker.ErrNoPasskeys
	}
	has, err := c.cfg.Broker.Passkeys(r.Context(), who.Person)
	if err != nil {
		return err
	}
	if len(has) == 0 && !c.cfg.Broker.FreshLogin(who.Person) {
		return broker.ErrOldLogin // before the device stores a passkey that would be refused
	}
	random := make([]byte, 32)
	_, _ = rand.Read(random) // it never fails
	challenge, handle := inBase64(random), sha256.Sum256([]byte(who.ID()))
	var algorithms []any
	for _, number := range passkey.Algorithms() {
		algorithms = append(algorithms, map[string]any{"type": "public-key", "alg": number})
	}
	// What a browser needs to create a passkey (WebAuthn's PublicKeyCredentialCreationOptionsJSON).
	text, err := json.Marshal(map[string]any{
		"challenge": challenge, "rp": map[string]string{"id": site.ID, "name": "Brevet"},
		"user":             map[string]string{"id": inBase64(handle[:]), "name": who.Name(), "displayName": who.Name()},
		"pubKeyCredParams": algorithms, "excludeCredentials": credentialsOf(has),
		// Require user verification each time: somebody who finds a security key or an unlocked computer is not its owner.
		"authenticatorSelection": map[string]string{"userVerification": "required", "residentKey": "preferred"},
		"attestation":            "none", "timeout": challengeLife.Milliseconds(),
	})
	if err != nil {
		return err
	}
	c.sessions.Put(r.Context(), keyChallenge, c.cfg.Now().Add(challengeLife).UTC().Format(time.RFC3339)+" "+challenge)
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(text) // the client may have disconnected
	return nil
}

func credentialsOf(has []broker.Passkey) []credential {
	all := []credential{}
	for _, p := range has {
		all = append(all, credential{"public-key", inBase64(p.Key.Credential), p.Key.Transports})
	}
	return all
}

// addPasskey registers the passkey that a browser created for the challenge of this session. A challenge is good for one try.
func (c *Console) addPasskey(r *http.Request, who *visitor) (done, error) {
	const here = "/you/passkeys"
	until, text, _ := strings.Cut(c.sessions.PopString(r.Context(), keyChallenge), " ")
	ends, noTime := time.Parse(time.RFC3339, until)
	challenge, noText := base64.RawURLEncoding.DecodeString(text)
	if noTime != nil || noText != nil || !c.cfg.Now().Before(ends) {
		return done{}, &returning{broker.ErrNotRegistered, here}
	}
	p, err := c.cfg.Broker.AddPasskey(r.Context(), who.Person, broker.Registration{
		Challenge: challenge, Response: []byte(r.PostForm.Get("response")), Assertion: []byte(r.PostForm.Get("assertion")),
		Name: strings.TrimSpace(r.PostForm.Get("name")),
	})
	if err != nil {
		return done{}, &returning{err, here}
	}
	return done{here, "The passkey “" + p.Name + "” was added. You can sign approvals with it."}, nil
}

// removePasskey removes a passkey of the visitor, who has to type its name.
func (c *Console) removePasskey(r *http.Request, who *visitor) (done, error) {
	const here = "/you/passkeys"
	has, err := c.cfg.Broker.Passkeys(r.Context(), who.Person)
	if err != nil {
		return done{}, err
	}
	i := slices.IndexFunc(has, func(p broker.Passkey) bool { return p.ID == chi.URLParam(r, "id") })
	if i < 0 {
		return done{}, broker.ErrNotFound
	}
	p := has[i]
	if strings.TrimSpace(r.PostForm.Get("confirm")) != p.Name {
		return done{}, &returning{errTyped, here}
	}
	if err := c.cfg.Broker.RemovePasskey(r.Context(), who.Person, p.ID); err != nil {
		return done{}, &returning{err, here}
	}
	return done{here, "The passkey “" + p.Name + "” was removed. Its signatures no longer count for requests that are not issued yet."}, nil
}

// sign makes the page of a request ask for one of the reader's passkeys, if an approval requires one.
func (c *Console) sign(ctx context.Context, who *visitor, a *ask) error {
	site := c.cfg.Broker.RelyingParty()
	if !a.Signed() || !a.Approve && !a.Break {
		return nil
	}
	if !site.Configured() {
		a.Approve, a.Break = false, false
		a.Bar = troubleOf(broker.ErrNoPasskeys).Means
		return nil
	}
	has, err := c.cfg.Broker.Passkeys(ctx, who.Person)
	if err != nil {
		return err
	}
	text, err := json.Marshal(credentialsOf(has))
	if err != nil {
		return err
	}
	hash := a.ApprovalRequest.Hash()
	a.Signing = &signing{Site: site.ID, Challenge: inBase64(hash[:]), Credentials: string(text), Keys: len(has)}
	return nil
}

// signing contains what a browser needs to sign an approval with a passkey.
type signing struct {
	Site, Challenge, Credentials string
	Keys                         int
}

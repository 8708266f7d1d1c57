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
	"strings"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/passkey"
	"github.com/brevet-dev/brevet/internal/secret"
	"github.com/go-chi/chi/v5"
)

// maxText is the largest size of a free text, in bytes, as at the API.
const maxText = 1000

var errSecretText = errors.New("text appears to contain a secret")

// checkText checks the length of a free text and keeps secrets out of the record (H82).
func checkText(text string) error {
	switch {
	case len(text) > maxText:
		return errForm
	case secret.Shaped(text):
		return errSecretText
	}
	return nil
}

// vote records a vote on a request and on the similar requests that the voter has ticked.
func (c *Console) vote(r *http.Request, who *visitor) (done, error) {
	if !who.Approves() {
		return done{}, errNotAllowed
	}
	id, err := caseID(r)
	if err != nil {
		return done{}, err
	}
	ballots, err := votesOf(r, id)
	if err != nil {
		return done{}, &returning{err, "/approvals/" + id}
	}
	after, err := c.cast(r, who, ballots[0])
	if err != nil {
		return done{}, &returning{err, "/approvals/" + id}
	}
	return done{"/approvals", c.said(after, ballots[0]) + c.castAlso(r, who, ballots[1:])}, nil
}

// cast records one vote. A denial after the decision still takes effect, so cast returns no error for it.
func (c *Console) cast(r *http.Request, who *visitor, b broker.VoteCast) (*broker.ApprovalRequest, error) {
	after, err := c.cfg.Broker.Vote(r.Context(), who.Person, b)
	if after != nil && after.Voted && c.cfg.Voted != nil {
		c.cfg.Voted(after, b.Verdict, who.Person)
	}
	if errors.Is(err, broker.ErrDecided) && after != nil && after.Voted {
		return after, nil
	}
	return after, err
}

// castAlso casts the votes on the similar requests and returns the result as text. Each vote contains the hash that the
// voter saw, so a request that has changed gets no vote. A vote without permission is recorded as a refusal, as if it had
// been cast alone.
func (c *Console) castAlso(r *http.Request, who *visitor, ballots []broker.VoteCast) string {
	if len(ballots) == 0 {
		return ""
	}
	n := 0
	for _, b := range ballots {
		if _, err := c.cast(r, who, b); err != nil {
			if t := troubleOf(err); t.status == http.StatusForbidden {
				c.refuse(r, who, t, err)
			}
			c.cfg.Log.WarnContext(r.Context(), "one of several votes was not recorded", "request", b.Request, "error", err)
			continue
		}
		n++
	}
	also := fmt.Sprintf(" The vote also applies to %d similar requests", n)
	if n == 1 {
		also = " The vote also applies to 1 similar request"
	}
	if n == len(ballots) {
		return also + "."
	}
	return also + fmt.Sprintf("; %d had changed or were already decided.", len(ballots)-n)
}

// votesOf parses the votes in a form: first the one on the request itself, then those on similar requests.
func votesOf(r *http.Request, id string) ([]broker.VoteCast, error) {
	b := broker.VoteCast{
		Request: id, Verdict: broker.Verdict(r.PostForm.Get("verdict")), Note: strings.TrimSpace(r.PostForm.Get("note")),
		Covers: broker.Cover(cmp.Or(r.PostForm.Get("covers"), string(broker.CoverRequest))), Assertion: []byte(r.PostForm.Get("assertion")),
	}
	switch b.Verdict {
	case broker.Approve, broker.Deny, broker.BreakGlass:
	default:
		return nil, errForm
	}
	if b.Covers != broker.CoverRequest && (b.Covers != broker.CoverTask || b.Verdict != broker.Approve) {
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
	if len(also) > mostAsks || b.Verdict == broker.BreakGlass && len(also) > 0 {
		return nil, errForm
	}
	ballots := []broker.VoteCast{b}
	for _, text := range also {
		other := b
		other.Assertion = nil // an assertion signs one request only
		var hash string
		other.Request, hash, _ = strings.Cut(text, ".")
		if other.Hash, err = hashOf(hash); err != nil {
			return nil, err
		}
		ballots = append(ballots, other)
	}
	return ballots, nil
}

func hashOf(text string) (hash [32]byte, err error) {
	if n, err := hex.Decode(hash[:], []byte(short(text, 2*len(hash)))); err != nil || n != len(hash) {
		return hash, errForm
	}
	return hash, nil
}

// said describes the effect of a vote, and what is still required.
func (c *Console) said(after *broker.ApprovalRequest, b broker.VoteCast) string {
	a := ask{ApprovalRequest: after}
	what := c.cfg.Broker.Title(after.Scope, after.Catalogue)
	if what = cmp.Or(what, after.Scope); after.Resource != "" {
		what += ", " + short(after.Resource, 80)
	}
	switch {
	case !after.Voted:
		return "You had already voted this way; nothing has changed. (" + what + ")"
	case b.Verdict == broker.Deny && after.Status == broker.StatusRedeemed:
		return "Denied: the issued credential is revoked. (" + what + ")"
	case b.Verdict == broker.Deny:
		return "Denied: no credential is issued. (" + what + ")"
	case after.Status == broker.StatusApproved && b.Verdict == broker.BreakGlass:
		return "Approved by break-glass: the sandbox can redeem the request now. (" + what + ")"
	case after.Status == broker.StatusApproved:
		return "Approved: the sandbox can redeem the request now. (" + what + ")"
	case b.Verdict == broker.BreakGlass:
		return fmt.Sprintf("Break-glass vote recorded, and everybody is notified: %d of %d of %s have approved, %d more required. (%s)",
			a.Broke(), a.StandIns(), after.BreakGlass, a.StandIns()-a.Broke(), what)
	default:
		return fmt.Sprintf("Approval recorded: %d of %d. %d more of %s required. (%s)",
			a.Yes(), after.ApprovalQuorum, after.ApprovalQuorum-a.Yes(), after.ApprovalGroup, what)
	}
}

const (
	// keyChallenge is the session key for a registration in progress, and challengeLife is how long that may take.
	keyChallenge  = "challenge"
	challengeLife = 5 * time.Minute
)

func (c *Console) passkeysRoutes(mux chi.Router) {
	mux.Get("/you/passkeys", c.visit(c.passkeys))
	mux.Post("/you/passkeys", c.act(c.addPasskey))
	mux.Post("/you/passkeys/challenge", c.challengePasskey)
	mux.Post("/you/passkeys/{id}/remove", c.act(c.removePasskey))
}

// passkeysPage lists passkeys. Most is how many a person may have.
type passkeysPage struct {
	Passkeys   []broker.Passkey
	Configured bool
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
	return pagePasskeys.view("Your passkeys", passkeysPage{has, site.Configured(), site.ID, broker.MaxPasskeys}), nil
}

// creation contains what a browser needs to create a passkey (WebAuthn's PublicKeyCredentialCreationOptionsJSON).
type creation struct {
	Challenge   string         `json:"challenge"`
	RP          relyingParty   `json:"rp"`
	User        user           `json:"user"`
	Parameters  []algorithm    `json:"pubKeyCredParams"`
	Exclude     []credential   `json:"excludeCredentials"`
	Selection   map[string]any `json:"authenticatorSelection"`
	Attestation string         `json:"attestation"`
	Timeout     int64          `json:"timeout"` // milliseconds
}

type relyingParty struct {
	ID   string `json:"id"`
	Name string `json:"name"`
}

type user struct {
	ID          string `json:"id"`
	Name        string `json:"name"`
	DisplayName string `json:"displayName"`
}

type algorithm struct {
	Type string `json:"type"`
	Alg  int64  `json:"alg"`
}

type credential struct {
	Type       string   `json:"type"`
	ID         string   `json:"id"`
	Transports []string `json:"transports,omitempty"`
}

func inBase64(b []byte) string { return base64.RawURLEncoding.EncodeToString(b) }

// challengePasskey starts a registration. It stores the challenge in the session, so only this session can use it.
func (c *Console) challengePasskey(w http.ResponseWriter, r *http.Request) {
	who, err := c.visitor(r)
	if err != nil {
		c.fail(w, r, nil, err)
		return
	}
	options, err := c.creation(r.Context(), who)
	if err != nil {
		c.fail(w, r, who, err)
		return
	}
	text, err := json.Marshal(options)
	if err != nil {
		c.fail(w, r, who, err)
		return
	}
	c.sessions.Put(r.Context(), keyChallenge, c.cfg.Now().Add(challengeLife).UTC().Format(time.RFC3339)+" "+options.Challenge)
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(text) // the client may have disconnected
}

func (c *Console) creation(ctx context.Context, who *visitor) (creation, error) {
	site := c.cfg.Broker.RelyingParty()
	if !site.Configured() {
		return creation{}, broker.ErrNoPasskeys
	}
	has, err := c.cfg.Broker.Passkeys(ctx, who.Person)
	if err != nil {
		return creation{}, err
	}
	challenge := make([]byte, 32)
	_, _ = rand.Read(challenge) // it never fails
	handle := sha256.Sum256([]byte(who.ID()))
	options := creation{
		Challenge: inBase64(challenge), RP: relyingParty{site.ID, "Brevet"},
		User: user{inBase64(handle[:]), who.Name(), who.Name()}, Exclude: credentialsOf(has),
		// Require user verification each time: somebody who finds a security key or an unlocked computer is not its owner.
		Selection:   map[string]any{"userVerification": "required", "residentKey": "preferred"},
		Attestation: "none", Timeout: challengeLife.Milliseconds(),
	}
	for _, number := range passkey.Algorithms() {
		options.Parameters = append(options.Parameters, algorithm{"public-key", number})
	}
	return options, nil
}

func credentialsOf(has []broker.Passkey) []credential {
	all := []credential{}
	for _, p := range has {
		all = append(all, credential{"public-key", inBase64(p.Key.Credential), p.Key.Transports})
	}
	return all
}

// addPasskey registers the passkey that a browser created for the challenge of this session. A challenge is good for one
// try.
func (c *Console) addPasskey(r *http.Request, who *visitor) (done, error) {
	const here = "/you/passkeys"
	until, text, _ := strings.Cut(c.sessions.PopString(r.Context(), keyChallenge), " ")
	ends, err := time.Parse(time.RFC3339, until)
	if err != nil || !c.cfg.Now().Before(ends) {
		return done{}, &returning{broker.ErrNotRegistered, here}
	}
	challenge, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil {
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

// errTyped means that the visitor did not type the expected confirmation.
var errTyped = errors.New("confirmation does not match")

// removePasskey removes a passkey of the visitor, who has to type its name.
func (c *Console) removePasskey(r *http.Request, who *visitor) (done, error) {
	const here = "/you/passkeys"
	has, err := c.cfg.Broker.Passkeys(r.Context(), who.Person)
	if err != nil {
		return done{}, err
	}
	for _, p := range has {
		if p.ID != chi.URLParam(r, "id") {
			continue
		}
		if strings.TrimSpace(r.PostForm.Get("confirm")) != p.Name {
			return done{}, &returning{errTyped, here}
		}
		if err := c.cfg.Broker.RemovePasskey(r.Context(), who.Person, p.ID); err != nil {
			return done{}, &returning{err, here}
		}
		return done{here, "The passkey “" + p.Name + "” was removed. Its signatures no longer count for requests that are not issued yet."}, nil
	}
	return done{}, broker.ErrNotFound
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

package console

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/passkey"
	"github.com/go-chi/chi/v5"
)

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

package broker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/brevet-dev/brevet/broker/approval"
	"github.com/brevet-dev/brevet/internal/passkey"
	"github.com/brevet-dev/brevet/internal/people"
)

// MaxPasskeys is how many passkeys one person can have at once. The schema holds the same number and enforces it.
const MaxPasskeys = 10

// maxPasskeyName is the longest name in characters. The schema holds the same number.
const maxPasskeyName = 64

// Passkey is a passkey of a person.
type Passkey struct {
	ID     string // a UUIDv7; also the ID of the entry that registers it
	Person string
	Name   string // free text of the person
	Time   time.Time
	// Site is the ID of the relying party that the passkey is registered for.
	Site string
	Key  passkey.Key
}

// Passkeys keeps people's passkeys.
type Passkeys interface {
	// Passkeys returns a person's passkeys that are not removed, oldest first. It returns only those that a ledger entry
	// confirms.
	Passkeys(ctx context.Context, person string) ([]Passkey, error)
	// AddPasskey commits a passkey. It returns ErrConcurrentChange if the person has MaxPasskeys, or if anybody ever had the same
	// credential ID or public key.
	AddPasskey(ctx context.Context, p Passkey, by approval.Voter) error
	// RemovePasskey commits that a person no longer has a passkey. It returns ErrConcurrentChange if the person has none with that ID.
	RemovePasskey(ctx context.Context, id string, by approval.Voter, at time.Time) error
}

// RelyingParty is the site that passkeys are registered for.
func (b *Broker) RelyingParty() passkey.RelyingParty { return b.cfg.RelyingParty }

// Passkeys returns a person's passkeys, oldest first.
func (b *Broker) Passkeys(ctx context.Context, who people.Person) ([]Passkey, error) {
	found, err := b.cfg.Passkeys.Passkeys(ctx, who.ID())
	if err != nil {
		return nil, fmt.Errorf("reading passkeys: %w", err)
	}
	return found, nil
}

// freshLogin is the maximum age of the login that registers a person's first passkey.
const freshLogin = 5 * time.Minute

// FreshLogin reports whether a person's login is recent enough to register a first passkey.
func (b *Broker) FreshLogin(who people.Person) bool {
	return who.LoggedInWithin(freshLogin, b.cfg.Now())
}

// Registration is the browser's response to a request to create a passkey.
type Registration struct {
	Challenge []byte // random, and known only to the person's session
	Response  []byte // of the new passkey
	// Assertion signs the same challenge with an existing passkey of the person. It is ignored if the person has none.
	Assertion []byte
	Name      string
}

// AddPasskey registers a passkey for a person. A session alone is not enough: one of the person's passkeys must sign, or, if
// there is none yet, the person must have logged in at the provider a moment ago. Errors are ErrNoPasskeys, ErrPasskeyName, ErrTooManyPasskeys, ErrOldLogin,
// ErrNotVouched and ErrNotRegistered. ErrNotRegistered means that the passkey was registered before, or that the response is
// invalid. A valid response answers this challenge, on a page of the site, and its authenticator has verified the user.
func (b *Broker) AddPasskey(ctx context.Context, who people.Person, r Registration) (Passkey, error) {
	if !b.cfg.RelyingParty.Configured() {
		return Passkey{}, ErrNoPasskeys
	}
	if strings.TrimSpace(r.Name) == "" || !utf8.ValidString(r.Name) || utf8.RuneCountInString(r.Name) > maxPasskeyName ||
		strings.ContainsFunc(r.Name, func(c rune) bool { return !unicode.IsPrint(c) }) {
		return Passkey{}, ErrPasskeyName
	}
	key, err := passkey.Register(r.Response, r.Challenge, b.cfg.RelyingParty)
	if err != nil {
		return Passkey{}, fmt.Errorf("%w: %w", ErrNotRegistered, err)
	}
	voter, err := b.upsertPerson(ctx, who)
	if err != nil {
		return Passkey{}, err
	}
	if err := b.mayAdd(ctx, who, r); err != nil {
		return Passkey{}, err
	}
	p := Passkey{ID: newID(), Person: voter.ID, Name: r.Name, Time: b.cfg.Now().UTC(), Site: b.cfg.RelyingParty.ID, Key: key}
	err = b.cfg.Passkeys.AddPasskey(ctx, p, voter)
	switch {
	case errors.Is(err, ErrConcurrentChange):
		return Passkey{}, fmt.Errorf("%w: already registered", ErrNotRegistered)
	case err != nil:
		return Passkey{}, fmt.Errorf("recording a passkey: %w", err)
	}
	b.cfg.Log.WarnContext(ctx, "a passkey was registered", "person", voter.ID, "passkey", p.ID)
	return p, nil
}

// mayAdd returns nil if a person may add a passkey.
func (b *Broker) mayAdd(ctx context.Context, who people.Person, r Registration) error {
	has, err := b.Passkeys(ctx, who)
	switch {
	case err != nil:
		return err
	case len(has) >= MaxPasskeys:
		return ErrTooManyPasskeys
	case len(has) == 0 && !b.FreshLogin(who):
		return ErrOldLogin
	case len(has) == 0:
		return nil
	}
	assertion, err := passkey.ParseAssertion(r.Assertion)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNotVouched, err)
	}
	err = passkey.ErrOtherKey
	for _, p := range has {
		if bytes.Equal(p.Key.Credential, assertion.Credential()) {
			err = passkey.Verify(p.Key, assertion, r.Challenge, b.cfg.RelyingParty)
		}
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNotVouched, err)
	}
	return nil
}

// RemovePasskey removes a person's passkey. It returns ErrNotFound if the person has none with that ID. Signatures of a removed
// passkey no longer count.
func (b *Broker) RemovePasskey(ctx context.Context, who people.Person, id string) error {
	voter, err := b.upsertPerson(ctx, who)
	if err != nil {
		return err
	}
	has, err := b.Passkeys(ctx, who)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(has, func(p Passkey) bool { return p.ID == id }) {
		return ErrNotFound
	}
	err = b.cfg.Passkeys.RemovePasskey(ctx, id, voter, b.cfg.Now().UTC())
	switch {
	case errors.Is(err, ErrConcurrentChange):
		return ErrNotFound
	case err != nil:
		return fmt.Errorf("recording that a passkey is removed: %w", err)
	}
	b.cfg.Log.WarnContext(ctx, "a passkey was removed", "person", voter.ID, "passkey", id)
	return nil
}

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

	"github.com/brevet-dev/brevet/internal/passkey"
	"github.com/brevet-dev/brevet/internal/people"
	"github.com/brevet-dev/brevet/scopes"
	"github.com/google/uuid"
)

// MaxPasskeys is how many passkeys somebody can have at a time. The schema holds the number too, and counts.
const MaxPasskeys = 10

// maxPasskeyName is in characters. The schema holds it too.
const maxPasskeyName = 64

// Passkey is a passkey of a person.
type Passkey struct {
	ID     string // a UUIDv7, which the entry that registers it has too
	Person string
	Name   string // free text of the person
	Time   time.Time
	// Site is the id of the relying party that it was registered for.
	Site string
	Key  passkey.Key
}

// Passkeys keeps the passkeys of people. All methods are safe for concurrent use, across replicas too; errors are as for Ledger.
type Passkeys interface {
	// Passkeys returns those of a person that are not removed, oldest first: the few that entries say are theirs.
	Passkeys(ctx context.Context, person string) ([]Passkey, error)
	// AddPasskey commits one. ErrOvertaken when the person has MaxPasskeys, or its credential or its public key was ever
	// somebody's.
	AddPasskey(ctx context.Context, p Passkey, by Voter) error
	// RemovePasskey commits that a person does not have one any more. ErrOvertaken when they have none of that id.
	RemovePasskey(ctx context.Context, id string, by Voter, at time.Time) error
}

// RelyingParty is the site that passkeys are for.
func (b *Broker) RelyingParty() passkey.RelyingParty { return b.cfg.RelyingParty }

// Passkeys returns those that a person has, oldest first.
func (b *Broker) Passkeys(ctx context.Context, who people.Person) ([]Passkey, error) {
	if b.cfg.Passkeys == nil {
		return nil, nil
	}
	found, err := b.cfg.Passkeys.Passkeys(ctx, who.ID())
	if err != nil {
		return nil, fmt.Errorf("reading passkeys: %w", err)
	}
	return found, nil
}

// freshLogin is how old a login may be that registers somebody's first passkey.
const freshLogin = 5 * time.Minute

// Registration is what somebody's browser answers to be given a passkey.
type Registration struct {
	Challenge []byte // of chance, that only their session has
	Response  []byte // the new passkey's
	// Assertion is over the same challenge, by a passkey that they have, where they have one; else it is not looked at.
	Assertion []byte
	Name      string
}

// AddPasskey registers a passkey for a person. A session is not enough for it: one of their passkeys has to say so, or, where
// they have none, a login of the last minutes. Errors are ErrNoPasskeys, ErrPasskeyName, ErrTooManyPasskeys, ErrOldLogin,
// ErrNotVouched, and ErrNotRegistered when it is no answer to that challenge on a page of the site by an authenticator that has
// verified its user, or the passkey was somebody's before.
func (b *Broker) AddPasskey(ctx context.Context, who people.Person, r Registration) (Passkey, error) {
	if b.cfg.Passkeys == nil || !b.cfg.RelyingParty.Configured() {
		return Passkey{}, ErrNoPasskeys
	}
	if !isPasskeyName(r.Name) {
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
	id, err := uuid.NewV7()
	if err != nil {
		return Passkey{}, fmt.Errorf("making an id: %w", err)
	}
	p := Passkey{
		ID: id.String(), Person: voter.ID, Name: r.Name, Time: b.cfg.Now().UTC(), Site: b.cfg.RelyingParty.ID, Key: key,
	}
	err = b.cfg.Passkeys.AddPasskey(ctx, p, voter)
	switch {
	case errors.Is(err, ErrOvertaken):
		return Passkey{}, fmt.Errorf("%w: it was registered before", ErrNotRegistered)
	case err != nil:
		return Passkey{}, fmt.Errorf("recording a passkey: %w", err)
	}
	b.cfg.Log.WarnContext(ctx, "a passkey was registered", "person", voter.ID, "passkey", p.ID)
	return p, nil
}

// mayAdd is nil when a person may be given a passkey more, and more than their session says so.
func (b *Broker) mayAdd(ctx context.Context, who people.Person, r Registration) error {
	has, err := b.Passkeys(ctx, who)
	switch {
	case err != nil:
		return err
	case len(has) >= MaxPasskeys:
		return ErrTooManyPasskeys
	case len(has) == 0 && b.cfg.Now().Sub(who.Issued()) > freshLogin:
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

func isPasskeyName(name string) bool {
	unseen := func(c rune) bool { return !unicode.IsPrint(c) }
	return strings.TrimSpace(name) != "" && utf8.ValidString(name) && utf8.RuneCountInString(name) <= maxPasskeyName &&
		!strings.ContainsFunc(name, unseen)
}

// RemovePasskey takes a passkey from a person who has it, else it is ErrNotFound. What it has signed counts no more from
// then on.
func (b *Broker) RemovePasskey(ctx context.Context, who people.Person, id string) error {
	if b.cfg.Passkeys == nil {
		return ErrNotFound
	}
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
	case errors.Is(err, ErrOvertaken):
		return ErrNotFound
	case err != nil:
		return fmt.Errorf("recording that a passkey is removed: %w", err)
	}
	b.cfg.Log.WarnContext(ctx, "a passkey was removed", "person", voter.ID, "passkey", id)
	return nil
}

// NeedsPasskey tells whether a yes to a request has to be signed by a passkey, as people are shown.
func (c *ApprovalRequest) NeedsPasskey() bool {
	s, ok := shownIn(c.Canonical)
	return ok && s.Passkey == scopes.PasskeyRequired
}

// filled is the vote that somebody fills in. Where it has to be signed it is, by a passkey that they have.
func (b *Broker) filled(ctx context.Context, c *ApprovalRequest, voter Voter, cast VoteCast) (Vote, error) {
	v := Vote{
		Voter: voter, Verdict: cast.Verdict, Covers: cast.Covers, Time: b.cfg.Now().UTC(), Note: cast.Note,
	}
	if v.Verdict == Deny || c.Status != StatusPending || !c.NeedsPasskey() || c.hasVoteOf(v) {
		return v, nil // it is not one that could count
	}
	if err := b.cfg.ApprovalPolicy.entitled(voter, v.Verdict, c); err != nil {
		return Vote{}, err
	}
	if b.cfg.Passkeys == nil || !b.cfg.RelyingParty.Configured() {
		return Vote{}, ErrNoPasskeys
	}
	assertion, err := passkey.ParseAssertion(cast.Assertion)
	if err != nil {
		return Vote{}, fmt.Errorf("%w: %w", ErrPasskey, err)
	}
	has, err := b.cfg.Passkeys.Passkeys(ctx, voter.ID)
	if err != nil {
		return Vote{}, fmt.Errorf("reading passkeys: %w", err)
	}
	for _, p := range has {
		if bytes.Equal(p.Key.Credential, assertion.Credential()) {
			v.Assertion, v.Key = assertion.String(), &p.Key
			return v, nil
		}
	}
	return Vote{}, fmt.Errorf("%w: %w", ErrPasskey, passkey.ErrOtherKey)
}

// signed is nil when a yes is signed as the request asks: by a passkey that the voter had then and has now, over exactly
// what they were shown. It is asked at the vote, and again at the mint.
func (e ApprovalPolicy) signed(v Vote, c *ApprovalRequest) error {
	switch {
	case v.Verdict == Deny || !c.NeedsPasskey():
		return nil
	case c.Remembered != "":
		return e.signedBefore(v, c)
	case v.Key == nil:
		return ErrPasskey
	}
	assertion, err := passkey.ParseAssertion([]byte(v.Assertion))
	if err == nil {
		hash := c.Hash()
		err = passkey.Verify(*v.Key, assertion, hash[:], e.site)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrPasskey, err)
	}
	return nil
}

// signedBefore is signed of a yes that was said, for the task, to the same ask before.
func (e ApprovalPolicy) signedBefore(v Vote, c *ApprovalRequest) error {
	if c.of == nil || c.of.ID != c.Remembered || c.of.Remembered != "" || !sameAsk(c.of.Canonical, c.Canonical) {
		return ErrPasskey
	}
	for _, before := range c.of.VotesCast {
		if before.Voter.ID == v.Voter.ID && before.Verdict == Approve && before.Covers == CoverTask {
			return e.signed(before, c.of)
		}
	}
	return ErrPasskey
}

package ledger

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/broker/approval"
	"github.com/brevet-dev/brevet/internal/ledger/postgres"
	"github.com/brevet-dev/brevet/internal/ledger/record"
	"github.com/brevet-dev/brevet/internal/passkey"
	"github.com/go-json-experiment/json"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// The kinds of entries about passkeys. The schema lists them too.
const (
	kindRegistered = "passkey.registered"
	kindRemoved    = "passkey.removed"
)

// passkeyBody is the body of the entries that register a passkey. Binary values are in base64url. All of it is public.
type passkeyBody struct {
	record.Header

	Actor      actorBody `json:"actor"` // the passkey's owner
	Name       string    `json:"name"`
	Site       string    `json:"relying_party"`
	Credential string    `json:"credential"`
	PublicKey  string    `json:"public_key"` // a COSE_Key
	Digest     string    `json:"digest"`     // of PublicKey
	Algorithm  int64     `json:"algorithm"`
	SignCount  uint32    `json:"sign_count"`
	Transports []string  `json:"transports"`
}

// removalBody is the body of the entries that remove a passkey.
type removalBody struct {
	record.Header

	Actor   actorBody `json:"actor"`
	Passkey string    `json:"passkey"`
}

var inBase64 = base64.RawURLEncoding.Strict()

// AddPasskey implements [broker.Passkeys].
func (l *Ledger) AddPasskey(ctx context.Context, p broker.Passkey, by approval.Voter) error {
	e, err := newEntry(kindRegistered, p.ID, p.Time)
	if err != nil {
		return err
	}
	digest := p.Key.Digest()
	e.command, e.overtakes, e.alone = true, true, "passkeys"
	return l.add(ctx, e, passkeyBody{
		Header: e.header(), Actor: actorBody{ID: by.ID, Name: by.Name},
		Name: p.Name, Site: p.Site, Credential: inBase64.EncodeToString(p.Key.Credential),
		PublicKey: inBase64.EncodeToString(p.Key.PublicKey), Digest: hex.EncodeToString(digest[:]),
		Algorithm: p.Key.Algorithm, SignCount: p.Key.SignCount, Transports: append([]string{}, p.Key.Transports...),
	})
}

// RemovePasskey implements [broker.Passkeys].
func (l *Ledger) RemovePasskey(ctx context.Context, id string, by approval.Voter, at time.Time) error {
	if _, err := record.ParseID(id); err != nil {
		return broker.ErrConcurrentChange
	}
	e := newCommand(kindRemoved, at)
	e.overtakes, e.alone = true, "passkeys"
	return l.add(ctx, e, removalBody{
		Header: e.header(), Actor: actorBody{ID: by.ID, Name: by.Name}, Passkey: id,
	})
}

// passkeyRow is a row of passkeys, with the body of the entry that it names.
type passkeyRow struct {
	ID         *uuid.UUID `db:"passkey"`
	Person     *string
	Credential *string
	PublicKey  *string `db:"public_key"`
	Registered []byte
}

// passkeyColumns are the columns of passkeyRow; the tables are k and e. There is no row e once another entry has removed the
// passkey, whatever the row k says.
//
//nolint:gosec // names of columns
const (
	passkeyColumns = `k.id AS passkey, k.person, k.credential, k.public_key, e.body AS registered`
	passkeyEntry   = `LEFT JOIN entries AS e ON e.index = k.entry_index AND e.id = k.id AND e.kind = 'passkey.registered'
		AND NOT EXISTS (
			SELECT FROM entries AS r
			WHERE r.kind = 'passkey.removed' AND r.index > k.entry_index
				AND convert_from(r.body, 'UTF8')::jsonb ->> 'passkey' = k.id::text)`
)

// passkey returns the passkey that the entry describes, or nil if the row disagrees with the entry. A row without its entry
// is no passkey.
func (r passkeyRow) passkey() *broker.Passkey {
	var b passkeyBody
	if r.ID == nil || r.Person == nil || r.Credential == nil || r.PublicKey == nil || json.Unmarshal(r.Registered, &b) != nil {
		return nil
	}
	credential, err := inBase64.DecodeString(b.Credential)
	public, errToo := inBase64.DecodeString(b.PublicKey)
	key := passkey.Key{
		Credential: credential, PublicKey: public, Algorithm: b.Algorithm, SignCount: b.SignCount, Transports: b.Transports,
	}
	digest := key.Digest()
	if err != nil || errToo != nil || b.ID != r.ID.String() || b.Actor.ID != *r.Person || b.Credential != *r.Credential ||
		b.PublicKey != *r.PublicKey || b.Digest != hex.EncodeToString(digest[:]) {
		return nil
	}
	return &broker.Passkey{ID: b.ID, Person: b.Actor.ID, Name: b.Name, Time: b.Time, Site: b.Site, Key: key}
}

// Passkeys implements [broker.Passkeys].
func (l *Ledger) Passkeys(ctx context.Context, person string) ([]broker.Passkey, error) {
	rows, err := l.read.Query(ctx, `
		SELECT `+passkeyColumns+` FROM passkeys AS k `+passkeyEntry+`
		WHERE k.person = @person AND k.removed_index IS NULL
		ORDER BY k.entry_index`, pgx.NamedArgs{"person": person})
	found, err := postgres.Collect(rows, err, pgx.RowToStructByName[passkeyRow])
	if err != nil {
		return nil, postgres.Unavailable("reading passkeys", err)
	}
	var all []broker.Passkey
	for _, r := range found {
		if p := r.passkey(); p != nil {
			all = append(all, *p)
		}
	}
	return all, nil
}

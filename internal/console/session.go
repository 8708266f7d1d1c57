package console

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/alexedwards/scs/v2"
	"github.com/brevet-dev/brevet/broker"
)

// Keys of a session.
const (
	keyIDToken = "id_token"
	keyNotice  = "notice"
)

// longestSession is the longest lifetime of a session. Each session ends when its ID token expires.
const longestSession = 24 * time.Hour

// minKey is the smallest length of Config.Key, in bytes.
const minKey = 32

func (c *Console) openSessions() *scs.SessionManager {
	m := scs.New()
	m.Store = store{c.cfg.Sessions}
	m.Lifetime = longestSession
	m.Cookie = scs.SessionCookie{Name: c.cookieName("session"), Path: "/", HttpOnly: true, Secure: true, SameSite: http.SameSiteLaxMode}
	m.ErrorFunc = func(w http.ResponseWriter, r *http.Request, err error) { c.fail(w, r, nil, err) }
	return m
}

// cookieName adds the __Host- prefix, which binds a cookie to this host. Browsers reject the prefix over http.
func (c *Console) cookieName(name string) string {
	if c.origin.Scheme == "https" {
		return "__Host-brevet-" + name
	}
	return "brevet-" + name
}

// store stores sessions so that read access to the storage reveals neither a cookie nor a login. A session is found by a
// digest of its cookie and sealed with a key derived from the cookie.
type store struct{ at Sessions }

var _ scs.CtxStore = store{}

// FindCtx implements scs.CtxStore.
func (s store) FindCtx(ctx context.Context, cookie string) (data []byte, found bool, err error) {
	sealed, err := s.at.Session(ctx, sha256.Sum256([]byte(cookie)))
	switch {
	case errors.Is(err, broker.ErrNotFound):
		return nil, false, nil
	case err != nil:
		return nil, false, fmt.Errorf("reading the session: %w", err)
	}
	box, err := sealer([]byte(cookie), "session")
	if err != nil {
		return nil, false, err
	}
	data, err = unseal(box, sealed)
	return data, err == nil, nil // a session that does not unseal with the cookie counts as not found
}

// CommitCtx implements scs.CtxStore.
func (s store) CommitCtx(ctx context.Context, cookie string, data []byte, ends time.Time) error {
	box, err := sealer([]byte(cookie), "session")
	if err != nil {
		return err
	}
	if err := s.at.KeepSession(ctx, sha256.Sum256([]byte(cookie)), seal(box, data), ends); err != nil {
		return fmt.Errorf("keeping the session: %w", err)
	}
	return nil
}

// DeleteCtx implements scs.CtxStore.
func (s store) DeleteCtx(ctx context.Context, cookie string) error {
	if err := s.at.DropSession(ctx, sha256.Sum256([]byte(cookie))); err != nil {
		return fmt.Errorf("dropping the session: %w", err)
	}
	return nil
}

// errNoContext is the error of the methods of scs.Store. scs calls them only on a store that does not implement
// scs.CtxStore.
var errNoContext = errors.New("sessions are read with a context only")

// Find implements scs.Store.
func (store) Find(string) ([]byte, bool, error) { return nil, false, errNoContext }

// Commit implements scs.Store.
func (store) Commit(string, []byte, time.Time) error { return errNoContext }

// Delete implements scs.Store.
func (store) Delete(string) error { return errNoContext }

// sealer returns an AEAD for one purpose. It derives the key from a secret.
func sealer(from []byte, purpose string) (cipher.AEAD, error) {
	key, err := hkdf.Key(sha256.New, from, nil, "brevet console "+purpose, 32)
	if err != nil {
		return nil, fmt.Errorf("deriving a key: %w", err)
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, fmt.Errorf("deriving a key: %w", err)
	}
	return cipher.NewGCMWithRandomNonce(block)
}

func seal(box cipher.AEAD, data []byte) []byte {
	return box.Seal(nil, nil, data, nil) //nolint:gosec // it draws a nonce itself
}

func unseal(box cipher.AEAD, sealed []byte) ([]byte, error) { return box.Open(nil, nil, sealed, nil) }

// random returns a random text of at least 128 bits.
func random() string { return rand.Text() }

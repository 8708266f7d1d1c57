package mint_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/audit"
	"github.com/brevet-dev/brevet/internal/mint"
	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
)

// TestLogKeySignsCheckpoints signs with Vault, before and after a rotation, and verifies with another library.
func TestLogKeySignsCheckpoints(t *testing.T) {
	a := realVault(t)
	a.key(t, "witnessed", "ecdsa-p256")
	a.write(t, "transit/keys/witnessed-log", map[string]any{"type": "ed25519"})
	auth, _ := a.role(t, "witnessed", nil)
	cfg := dial(t, a, "witnessed", auth)
	cfg.Refresh = 1 // so that each use reads the key again
	k, err := open(t, cfg).LogKey(t.Context(), "log.test/ledger")
	if err != nil {
		t.Fatal(err)
	}
	c := audit.Checkpoint{Origin: k.Origin(), Tree: tlog.Tree{N: 7, Hash: tlog.RecordHash([]byte("x"))}}
	var signed [2][]byte
	for i := range signed {
		if signed[i], err = k.Sign(t.Context(), c.String()); err != nil {
			t.Fatal(err)
		}
		a.write(t, "transit/keys/witnessed-log/rotate", nil)
	}
	keys, err := k.Keys(t.Context())
	if err != nil || len(keys) != 3 {
		t.Fatalf("got %d keys, %v; want 3", len(keys), err)
	}
	for i, key := range keys[:2] {
		v, err := note.NewVerifier(key)
		if err != nil {
			t.Fatal(err)
		}
		for j, one := range signed {
			got, err := audit.OpenCheckpoint(one, "log.test/ledger", note.VerifierList(v))
			if i == j && (err != nil || got != c) || i != j && !errors.Is(err, audit.ErrUnsigned) {
				t.Errorf("checkpoint %d with key %d: got %v, %v", j, i, got, err)
			}
		}
	}
}

// While Vault is unavailable nothing is signed, and existing signatures can still be verified.
func TestLogKeyVerifiesDuringAVaultOutage(t *testing.T) {
	a := realVault(t)
	a.key(t, "away", "ecdsa-p256")
	a.write(t, "transit/keys/away-log", map[string]any{"type": "ed25519"})
	auth, _ := a.role(t, "away", nil)
	cfg := dial(t, a, "away", auth)
	cfg.Refresh = 1
	k, err := open(t, cfg).LogKey(t.Context(), "log.test/ledger")
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Seal(t.Context()); err != nil {
		t.Fatal(err)
	}
	keys, keysErr := k.Keys(t.Context())
	_, signErr := k.Sign(t.Context(), "text\n")
	if err := a.Unseal(t.Context()); err != nil {
		t.Fatal(err)
	}
	if keysErr != nil || len(keys) != 1 || !errors.Is(signErr, broker.ErrVaultUnavailable) {
		t.Errorf("got %d keys, %v and %v from Sign; want the one key, and %v", len(keys), keysErr, signErr, broker.ErrVaultUnavailable)
	}
}

func TestUnsuitableLogKeysDoNotSign(t *testing.T) {
	a := realVault(t)
	for name, kind := range map[string]map[string]any{
		"missing":    nil,
		"other-type": {"type": "ecdsa-p256"},
		"exportable": {"type": "ed25519", "exportable": true},
	} {
		key := "unlogged-" + name
		a.key(t, key, "ecdsa-p256")
		if kind != nil {
			a.write(t, "transit/keys/"+key+"-log", kind)
		}
		auth, _ := a.role(t, key, nil)
		_, err := open(t, dial(t, a, key, auth)).LogKey(t.Context(), "log.test/ledger")
		if err == nil || kind != nil && !errors.Is(err, mint.ErrKeyUnfit) {
			t.Errorf("%s: got %v, want a refusal", name, err)
		}
	}
	a.key(t, "named", "ecdsa-p256")
	a.write(t, "transit/keys/named-log", map[string]any{"type": "ed25519"})
	auth, _ := a.role(t, "named", nil)
	for _, origin := range []string{"", "a b", "a+b"} {
		if _, err := open(t, dial(t, a, "named", auth)).LogKey(t.Context(), origin); !errors.Is(err, mint.ErrConfig) || strings.Contains(err.Error(), "token") {
			t.Errorf("a log named %q: got %v, want %v", origin, err, mint.ErrConfig)
		}
	}
}

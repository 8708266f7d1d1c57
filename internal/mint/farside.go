package mint

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/scopes"
	"github.com/hashicorp/vault/api"
)

// irrevocable reports whether another system accepts the credential until it expires, whatever Vault does with its lease.
func irrevocable(intent broker.Intent) bool {
	return intent.Kind == scopes.KindVault && !intent.Grant.Leased && !intent.Grant.Static
}

// lifetime returns the number of seconds for which an irrevocable credential is requested. The other system counts them from the
// moment at which it makes the credential. So a credential with the shortest life that it gives outlives the grant by the time that
// the mint took, and every other one does not.
func lifetime(intent broker.Intent, left int) int {
	return max(left, int(intent.Grant.MinTTL/time.Second))
}

// checkFarSide compares the time at which the credential ends by itself with the intent (I7 in SECURITY.md). left is the number of
// seconds that the intent had left before the call.
//
// A lease of Vault says too much about some credentials. The engine aws gives a lease to keys of STS, and the engine kubernetes to a
// token of a service account that existed before, and to end such a lease ends nothing. The answer shows both cases.
func checkFarSide(intent broker.Intent, answer *api.Secret, left int) error {
	if intent.Kind != scopes.KindVault || intent.Grant.Static {
		return nil
	}
	if irrevocable(intent) {
		return checkLife(lifetime(intent, left), answer)
	}
	account, isAccount := answer.Data["service_account_name"].(string)
	switch {
	case firstText(answer.Data, "session_token", "security_token") != "":
		return fmt.Errorf("%w: it is a temporary key of AWS, which nobody can revoke: its scope needs revocable: false", broker.ErrMintMismatch)
	case isAccount && !strings.Contains(account, intent.ID):
		return fmt.Errorf("%w: the service account %q is not of this issuance, so that Vault may be unable to revoke its token: "+
			"the role needs a name_template with {{.DisplayName}}, or the scope revocable: false", broker.ErrMintMismatch, account)
	case !answer.Renewable && answer.LeaseDuration < left-renewSlack:
		return fmt.Errorf("%w: its lease ends after %d s of %d and cannot be renewed: its ttl is too short", broker.ErrVaultRefused, answer.LeaseDuration, left)
	}
	return nil
}

// checkLife compares the life that the other system gives with the requested one.
func checkLife(wanted int, answer *api.Secret) error {
	got, known := life(answer)
	switch {
	case !known:
		return fmt.Errorf("%w: the answer does not say how long the other system accepts the credential", broker.ErrMintMismatch)
	case got > wanted:
		return fmt.Errorf("%w: the other system accepts the credential for %d s, want %d s at most", broker.ErrMintMismatch, got, wanted)
	case got < wanted-renewSlack:
		return fmt.Errorf("%w: the other system accepts the credential for %d s of %d: the limits of its role or of Vault are too short",
			broker.ErrVaultRefused, got, wanted)
	}
	return nil
}

// lostByVault reports whether Vault has refused because it got no answer of AWS, or none that it understood: the codes are those of
// the client that the engine aws uses.
func lostByVault(err error) bool {
	for _, code := range []string{"RequestError", "RequestCanceled", "ResponseTimeout", "SerializationError"} {
		if says(err, code) {
			return true
		}
	}
	return false
}

// life returns the number of seconds for which the other system accepts the credential, as the answer says it: the life of a JWT, the
// member ttl of the engine aws, or else the life of the lease. The first two come first, because Vault can cap a lease without the
// other system.
func life(answer *api.Secret) (int, bool) {
	if token := firstText(answer.Data, "service_account_token", "token"); token != "" {
		if seconds, isJWT := lifeOfJWT(token); isJWT {
			return seconds, true
		}
	}
	if number, isNumber := answer.Data["ttl"].(json.Number); isNumber {
		if seconds, err := number.Int64(); err == nil && seconds > 0 && seconds < 1<<31 {
			return int(seconds), true
		}
	}
	return answer.LeaseDuration, answer.LeaseID != "" && answer.LeaseDuration > 0
}

// lifeOfJWT reads the claims of a JWT of another system, without its key: they only have to agree with what was requested.
func lifeOfJWT(token string) (int, bool) {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return 0, false
	}
	text, err := base64.RawURLEncoding.DecodeString(parts[1])
	var claims struct {
		IssuedAt json.Number `json:"iat"`
		Expires  json.Number `json:"exp"`
	}
	if err != nil || json.Unmarshal(text, &claims) != nil {
		return 0, false
	}
	issued, err1 := claims.IssuedAt.Float64()
	expires, err2 := claims.Expires.Float64()
	if life := expires - issued; err1 == nil && err2 == nil && life > 0 && life < 1<<31 {
		return int(life), true
	}
	return 0, false
}

package webhook

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/brevet-dev/brevet/internal/secret"
)

// The prefix of a symmetric secret, and the bounds of its key in bytes, from Standard Webhooks.
const (
	secretPrefix   = "whsec_"
	minKey, maxKey = 24, 64
)

var errSecret = errors.New("the secret must be whsec_ followed by 24 to 64 bytes in base64")

// parseKeys parses one or two secrets.
func parseKeys(text secret.Text) ([][]byte, error) {
	var keys [][]byte
	for one := range strings.FieldsSeq(text.Reveal()) {
		encoded, ok := strings.CutPrefix(one, secretPrefix)
		key, err := base64.StdEncoding.Strict().DecodeString(encoded)
		if !ok || err != nil || len(key) < minKey || len(key) > maxKey {
			return nil, errSecret
		}
		keys = append(keys, key)
	}
	if len(keys) == 0 || len(keys) > 2 {
		return nil, errSecret
	}
	return keys, nil
}

// signature returns the value of the webhook-signature header, with one signature for each key.
func signature(keys [][]byte, id string, at time.Time, body []byte) string {
	var all []string
	for _, key := range keys {
		mac := hmac.New(sha256.New, key)
		_, _ = mac.Write([]byte(id + "." + strconv.FormatInt(at.Unix(), 10) + "."))
		_, _ = mac.Write(body)
		all = append(all, "v1,"+base64.StdEncoding.EncodeToString(mac.Sum(nil)))
	}
	return strings.Join(all, " ")
}

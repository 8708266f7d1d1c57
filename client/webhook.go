package client

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/brevet-dev/brevet/internal/secret"
)

// webhookAge is how old a webhook may be when it arrives, or how far in the future its timestamp may be. It bounds replays.
const webhookAge = 5 * time.Minute

// ErrWebhook means that a webhook does not come from the server, or is too old. A receiver responds with 401.
var ErrWebhook = errors.New("webhook is not authentic, or too old")

// VerifyWebhook verifies a received webhook with the secret that it shares with the sender (Standard Webhooks, v1), and returns
// its ID. body must be the exact bytes received. A webhook may arrive again with the same ID, and anyone who has seen one can
// replay it within five minutes. So a receiver must act only once on each ID.
func VerifyWebhook(header http.Header, body []byte, whsec secret.Text, now time.Time) (id string, err error) {
	id, stamp := header.Get("Webhook-Id"), header.Get("Webhook-Timestamp")
	encoded, ok := strings.CutPrefix(whsec.Reveal(), "whsec_")
	key, err := base64.StdEncoding.DecodeString(encoded)
	if !ok || err != nil || len(key) < 24 {
		return "", errors.New("client: the secret of the webhook is not whsec_ and base64 of 24 bytes or more")
	}
	seconds, err := strconv.ParseInt(stamp, 10, 64)
	if err != nil || id == "" || len(header.Values("Webhook-Id")) != 1 || len(header.Values("Webhook-Timestamp")) != 1 {
		return "", ErrWebhook
	}
	if age := now.Sub(time.Unix(seconds, 0)); age > webhookAge || age < -webhookAge {
		return "", ErrWebhook
	}
	mac := hmac.New(sha256.New, key)
	_, _ = mac.Write([]byte(id + "." + stamp + "."))
	_, _ = mac.Write(body)
	want := mac.Sum(nil)
	for one := range strings.FieldsSeq(header.Get("Webhook-Signature")) {
		version, value, _ := strings.Cut(one, ",")
		got, err := base64.StdEncoding.DecodeString(value)
		if version == "v1" && err == nil && hmac.Equal(got, want) {
			return id, nil
		}
	}
	return "", ErrWebhook
}

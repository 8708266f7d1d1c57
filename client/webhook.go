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

// webhookAge is how old a webhook may be when it arrives, or how far ahead its clock: longer would be a replay.
const webhookAge = 5 * time.Minute

// ErrWebhook tells that a webhook is not one of the server's, or is too old. A receiver answers 401.
var ErrWebhook = errors.New("webhook is not authentic, or too old")

// VerifyWebhook holds a webhook that was received to the secret that its sender shares (Standard Webhooks, v1), and
// returns its id. body is as it was received, byte for byte. Webhooks may come again with the same id, and whoever has seen
// one can send it again within five minutes: a receiver that has done something for an id does not do it twice.
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

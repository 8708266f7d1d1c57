package httpapi_test

import (
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/testkit"
	farside "github.com/brevet-dev/brevet/internal/testkit/clouds"
	"github.com/brevet-dev/brevet/openapi"
	"github.com/brevet-dev/brevet/scopes"
)

const engineScopes = `
scopes:
  - name: aws.keys
    title: Keys that nobody can revoke
    authority: read
    resource: aws:keys
    ttl: {default: 15m, max: 1h}
    credential: {kind: vault, method: write, path: aws-api/creds/site, revocable: false, min_ttl: 15m}
  - name: kubernetes.pods
    title: A token of a new service account
    authority: read
    resource: kubernetes:pods
    ttl: {default: 5m, max: 10m}
    credential: {kind: vault, method: write, path: kubernetes-api/creds/pods, data: {kubernetes_namespace: shop, ttl: 10m}}
`

func withEngines(t *testing.T) (*testkit.Stack, *farside.Engines) {
	t.Helper()
	s := testkit.NewStack(t, testkit.Options{Catalogue: []scopes.File{
		{Name: "scopes.yaml", Data: []byte(engineScopes)},
		{Name: "policy.cedar", Data: []byte(`@id("all") permit (principal, action, resource);`)},
	}, Auditors: []string{auditor}})
	return s, farside.NewEngines(t, s.Vault(t), "-api")
}

// dataOf returns the texts in the data of a credential of kind vault.
func dataOf(t *testing.T, token *client.Token) map[string]string {
	t.Helper()
	var object struct{ Data map[string]any }
	if err := json.Unmarshal([]byte(token.Secret.Reveal()), &object); err != nil {
		t.Fatal(err)
	}
	texts := map[string]string{}
	for name, value := range object.Data {
		texts[name], _ = value.(string)
	}
	return texts
}

// A receipt says invalid everywhere only if it is: AWS accepts a key until its hour, and the receipt and the record name the hour.
func TestReceiptsNameTheHourOfWhatNobodyCanRevoke(t *testing.T) {
	s, engines := withEngines(t)
	c := s.Client(t, agent)
	key := token(t, c, client.Ask{Scope: "aws.keys", Task: "t-1"})
	account := token(t, c, client.Ask{Scope: "kubernetes.pods", Task: "t-1"})
	works := func(want map[string]bool) {
		t.Helper()
		k, a := dataOf(t, key), dataOf(t, account)
		ofAWS, err1 := engines.STS.Accepts(t.Context(), k["access_key"], k["secret_key"], k["session_token"])
		ofCluster, err2 := engines.Cluster.Accepts(t.Context(), a["service_account_token"])
		if err := errors.Join(err1, err2); err != nil || ofAWS != want["aws.keys"] || ofCluster != want["kubernetes.pods"] {
			t.Errorf("AWS accepts its key: %t, the cluster its token: %t, %v; want %v", ofAWS, ofCluster, err, want)
		}
	}
	works(map[string]bool{"aws.keys": true, "kubernetes.pods": true})
	if one, err := c.Issuance(t.Context(), key.ID); err != nil || !one.Credential.UsableUntil.IsZero() || one.Credential.Static {
		t.Errorf("before the end: got %+v, %v", one.Credential, err)
	}
	receipt, err := c.EndTask(t.Context(), "t-1", client.TaskEnd{})
	if err != nil || receipt.Counts["revoked"] != 2 {
		t.Fatalf("got %+v, %v, want both revoked", receipt, err)
	}
	for _, e := range receipt.Ended {
		one, err := c.Issuance(t.Context(), e.ID)
		want := time.Time{}
		if e.ID == key.ID {
			want = one.ExpiresAt
		}
		if err != nil || e.Why != "" || !e.UsableUntil.Equal(want) || !one.Credential.UsableUntil.Equal(want) || one.Credential.Static {
			t.Errorf("%s: got %+v, %+v, %v, want it usable until %v", e.Scope, e, one.Credential, err, want)
		}
	}
	works(map[string]bool{"aws.keys": true})
	s.DB.Check(t)
}

// A request for less than AWS gives is invalid. A key that was lost on its way is unknown until its hour.
func TestLostKeysOfAWSAreRecordedWithTheirHour(t *testing.T) {
	s, engines := withEngines(t)
	c := s.Client(t, agent)
	if _, err := c.Request(t.Context(), client.Ask{Scope: "aws.keys", Task: "t-1", TTL: 5 * time.Minute}); !errors.Is(err, client.ErrInvalid) {
		t.Errorf("a TTL that AWS does not give: got %v, want ErrInvalid", err)
	}
	engines.STS.LoseAnswers()
	if got, err := c.Request(t.Context(), client.Ask{Scope: "aws.keys", Task: "t-1"}); err == nil {
		t.Fatalf("got %+v, want no key", got)
	}
	page, err := s.Client(t, auditor).Page(t.Context(), client.Filter{Scope: "aws.keys"})
	if err != nil || len(page.Issuances) != 1 {
		t.Fatalf("got %+v, %v, want one record", page, err)
	}
	if r := page.Issuances[0]; r.Status != openapi.StatusUnknown || !r.Credential.UsableUntil.Equal(r.ExpiresAt) || len(engines.STS.Sessions()) != 1 {
		t.Errorf("got %s, usable until %v, and %d sessions; want it unknown until %v", r.Status, r.Credential.UsableUntil, len(engines.STS.Sessions()), r.ExpiresAt)
	}
	receipt, err := c.EndTask(t.Context(), "t-1", client.TaskEnd{})
	if err != nil || len(receipt.Ended) != 1 || receipt.Ended[0].Why != "unfinished" || !receipt.Ended[0].UsableUntil.Equal(page.Issuances[0].ExpiresAt) {
		t.Errorf("got the receipt %+v, %v", receipt, err)
	}
	s.DB.Check(t)
}

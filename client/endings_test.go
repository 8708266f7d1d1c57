package client_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/openapi"
	"github.com/google/go-cmp/cmp"
)

func TestRevocationRequestsMatchTheAPI(t *testing.T) {
	at := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	var got string
	c := newClient(t, func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		got = fmt.Sprintf("%s %s [%s] %s", r.Method, r.RequestURI, r.Header.Get("Content-Type"), body)
		switch r.Method {
		case http.MethodDelete:
			w.WriteHeader(http.StatusNoContent)
		case http.MethodGet:
			writeToken(w, 200, `{"quarantines":[{"spiffe_id":"spiffe://a.test/x","since":"2030-01-02T03:04:05Z","actor":"spiffe://a.test/admin"}]}`)
		default:
			writeToken(w, 202, `{"id":"7","time":"2030-01-02T03:04:05Z","more":false,"counts":{"revoking":1},"ended":[{"id":"1","status":"revoking","why":"vault_unavailable"}]}`)
		}
	})
	receipt := func(r openapi.Receipt, err error) error {
		if err == nil && (r.ID != "7" || !r.Time.Equal(at) || r.Counts["revoking"] != 1 || r.Ended[0].Why != "vault_unavailable") {
			return fmt.Errorf("got the receipt %+v", r)
		}
		return err
	}
	for _, tc := range []struct {
		call func() error
		want string
	}{
		{func() error { return receipt(c.Release(t.Context(), "1")) }, "POST /v1/issuances/1/release [] "},
		{
			func() error { return receipt(c.EndTask(t.Context(), "t:1", client.TaskEnd{})) },
			"POST /v1/tasks/t:1/end [application/json] {}",
		},
		{
			func() error {
				return receipt(c.EndTask(t.Context(), "t", client.TaskEnd{SPIFFEID: "spiffe://a.test/x", At: at, Reason: "r"}))
			},
			`POST /v1/tasks/t/end [application/json] {"at":"2030-01-02T03:04:05Z","reason":"r","spiffe_id":"spiffe://a.test/x"}`,
		},
		{
			func() error {
				return receipt(c.Revoke(t.Context(), client.Selection{Task: "t", TrustDomain: "a.test"}, "leaked"))
			},
			`POST /v1/revocations [application/json] {"reason":"leaked","task":"t","trust_domain":"a.test"}`,
		},
		{
			func() error { return receipt(c.Quarantine(t.Context(), "spiffe://a.test/x", "odd")) },
			`POST /v1/quarantines [application/json] {"reason":"odd","spiffe_id":"spiffe://a.test/x"}`,
		},
		{
			func() error { return c.Unquarantine(t.Context(), "spiffe://a.test/x", "") },
			"DELETE /v1/quarantines?spiffe_id=spiffe%3A%2F%2Fa.test%2Fx [] ",
		},
		{
			func() error {
				all, err := c.Quarantines(t.Context())
				if err == nil && (len(all) != 1 || all[0].Actor != "spiffe://a.test/admin") {
					return fmt.Errorf("got %+v", all)
				}
				return err
			},
			"GET /v1/quarantines [] ",
		},
	} {
		if err := tc.call(); err != nil {
			t.Errorf("%s: %v", tc.want, err)
		}
		if got != tc.want {
			t.Errorf("sent %s\nwant %s", got, tc.want)
		}
	}
	for _, name := range []string{"", ".", ".."} {
		if _, err := c.EndTask(t.Context(), name, client.TaskEnd{}); !errors.Is(err, client.ErrInvalid) {
			t.Errorf("task %q: got %v, want ErrInvalid", name, err)
		}
		if _, err := c.Release(t.Context(), name); !errors.Is(err, client.ErrInvalid) {
			t.Errorf("id %q: got %v, want ErrInvalid", name, err)
		}
	}
}

func TestQuarantineAndTaskEndAreDistinctDenials(t *testing.T) {
	for reason, want := range map[string]error{"quarantined": client.ErrQuarantined, "task_ended": client.ErrTaskEnded} {
		c := newClient(t, func(w http.ResponseWriter, _ *http.Request) {
			writeProblem(w, openapi.Problem{Type: openapi.CodeDenied.Type(), Code: openapi.CodeDenied, Status: 403, Reason: reason})
		})
		_, err := c.Request(t.Context(), client.Ask{Scope: "a.b", Task: "t"})
		for sentinel, is := range map[error]bool{
			client.ErrDenied: true, client.ErrQuarantined: want == client.ErrQuarantined, client.ErrTaskEnded: want == client.ErrTaskEnded, //nolint:errorlint // which of two, not whether
		} {
			if errors.Is(err, sentinel) != is {
				t.Errorf("%s: got errors.Is(%v) = %t, want %t", reason, sentinel, !is, is)
			}
		}
	}
}

func TestNonTokenCredentialsAreDecoded(t *testing.T) {
	const credential = `{"username":"v-1","password":"p\"w","port":5432,"big":9007199254740993,"hosts":["a","b"]}`
	c := newClient(t, func(w http.ResponseWriter, r *http.Request) {
		var body map[string]any
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil || body["csr"] != "C" || body["public_key"] != "P" {
			t.Errorf("got the body %v, %v", body, err)
		}
		writeToken(w, 201, `{"id":"1","kind":"database","static":true,"name":"v-1","credential":`+credential+`}`)
	})
	got, err := c.Request(t.Context(), client.Ask{Scope: "a.b", Task: "t", CSR: "C", PublicKey: "P"})
	if err != nil {
		t.Fatal(err)
	}
	token := got.Token
	if token.Kind != "database" || !token.Static || token.Name != "v-1" || token.Secret.Reveal() != credential {
		t.Errorf("got %+v", token)
	}
	want := map[string]string{"username": "v-1", "password": `p"w`, "port": "5432", "big": "9007199254740993", "hosts": `["a","b"]`, "none": ""}
	for name, value := range want {
		if got := token.Field(name).Reveal(); got != value {
			t.Errorf("%s: got %s, want %s", name, got, value)
		}
	}
	if diff := cmp.Diff([]string{"big", "hosts", "password", "port", "username"}, token.Fields()); diff != "" {
		t.Errorf("fields (-want +got):\n%s", diff)
	}
	encoded, err := json.Marshal(token)
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{string(encoded), fmt.Sprintf("%v %+v %#v", token, *token, *token)} {
		if strings.Contains(text, "5432") || strings.Contains(text, `p"w`) {
			t.Errorf("the credential shows in %s", text)
		}
	}
}

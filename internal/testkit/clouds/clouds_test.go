package clouds_test

import (
	"bytes"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	"github.com/brevet-dev/brevet/internal/testkit/clouds"
)

// The example get-vanilla of AWS's test suite of Signature Version 4.
func TestSigV4AcceptsTheExampleOfAWS(t *testing.T) {
	r := httptest.NewRequest(http.MethodGet, "http://example.amazonaws.com/", nil)
	r.Header.Set("X-Amz-Date", "20150830T123600Z")
	r.Header.Set("Authorization", "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/service/aws4_request, "+
		"SignedHeaders=host;x-amz-date, Signature=5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31")
	v := clouds.SigV4{Region: "us-east-1", Service: "service", Now: func() time.Time { return time.Date(2015, 8, 30, 12, 36, 30, 0, time.UTC) }}
	v.Keys = func(id string) (clouds.SigV4Key, bool) {
		return clouds.SigV4Key{Secret: "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"}, id == "AKIDEXAMPLE"
	}
	if id, err := v.Verify(r, nil); err != nil || id != "AKIDEXAMPLE" {
		t.Errorf("got %q, %v", id, err)
	}
}

func TestSigV4RefusesWhatIsNotSigned(t *testing.T) {
	key := aws.Credentials{AccessKeyID: "ASIA1", SecretAccessKey: "secret", SessionToken: "session"}
	known := clouds.SigV4Key{Secret: "secret", Token: "session", Expires: time.Now().Add(time.Hour)}
	for name, tc := range map[string]struct {
		spoil func(r *http.Request, body *[]byte, v *clouds.SigV4)
		code  string
	}{
		"nothing is wrong":    {func(*http.Request, *[]byte, *clouds.SigV4) {}, ""},
		"another body":        {func(_ *http.Request, body *[]byte, _ *clouds.SigV4) { *body = []byte("Action=Other") }, "SignatureDoesNotMatch"},
		"another path":        {func(r *http.Request, _ *[]byte, _ *clouds.SigV4) { r.URL.Path = "/other" }, "SignatureDoesNotMatch"},
		"another host":        {func(r *http.Request, _ *[]byte, _ *clouds.SigV4) { r.Host = "sts.example" }, "SignatureDoesNotMatch"},
		"another query":       {func(r *http.Request, _ *[]byte, _ *clouds.SigV4) { r.URL.RawQuery = "a=2" }, "SignatureDoesNotMatch"},
		"a header not signed": {func(r *http.Request, _ *[]byte, _ *clouds.SigV4) { r.Header.Set("X-Amz-Target", "a") }, "SignatureDoesNotMatch"},
		"no session token":    {func(r *http.Request, _ *[]byte, _ *clouds.SigV4) { r.Header.Del("X-Amz-Security-Token") }, "InvalidClientTokenId"},
		"another region":      {func(_ *http.Request, _ *[]byte, v *clouds.SigV4) { v.Region = "us-west-1" }, "SignatureDoesNotMatch"},
		"another service":     {func(_ *http.Request, _ *[]byte, v *clouds.SigV4) { v.Service = "iam" }, "SignatureDoesNotMatch"},
		"ten minutes later": {func(_ *http.Request, _ *[]byte, v *clouds.SigV4) {
			v.Now = func() time.Time { return time.Now().Add(10 * time.Minute) }
		}, "SignatureDoesNotMatch"},
		"no signature":           {func(r *http.Request, _ *[]byte, _ *clouds.SigV4) { r.Header.Del("Authorization") }, "MissingAuthenticationToken"},
		"a key that has expired": {func(_ *http.Request, _ *[]byte, _ *clouds.SigV4) { known.Expires = time.Now().Add(-time.Second) }, "ExpiredToken"},
	} {
		t.Run(name, func(t *testing.T) {
			known.Expires = time.Now().Add(time.Hour)
			body := []byte("Action=GetCallerIdentity")
			r := httptest.NewRequest(http.MethodPost, "http://sts.test/a%20b?a=1&b=x%20y", bytes.NewReader(body))
			if err := v4.NewSigner().SignHTTP(t.Context(), key, r, fmt.Sprintf("%x", sha256.Sum256(body)), "sts", "eu-central-1", time.Now()); err != nil {
				t.Fatal(err)
			}
			v := clouds.SigV4{Region: "eu-central-1", Service: "sts", Now: time.Now}
			v.Keys = func(id string) (clouds.SigV4Key, bool) { return known, id == "ASIA1" }
			tc.spoil(r, &body, &v)
			_, err := v.Verify(r, body)
			refusal, _ := errors.AsType[*clouds.SigV4Error](err)
			if tc.code == "" && err != nil || tc.code != "" && (refusal == nil || refusal.Code != tc.code) {
				t.Errorf("got %v, want %q", err, tc.code)
			}
		})
	}
}

// The cluster checks who calls, what RBAC allows, and what a call says, in that order.
func TestKubernetesIsStrict(t *testing.T) {
	k := clouds.NewKubernetes(t)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM([]byte(k.CA))
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}}}
	call := func(token, method, path, body string) (int, map[string]any) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), method, k.URL+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+token)
		r.Header.Set("Content-Type", "application/json")
		resp, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = resp.Body.Close() }()
		text, _ := io.ReadAll(resp.Body)
		var answer map[string]any
		if err := json.Unmarshal(text, &answer); err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, answer
	}
	vault := k.VaultToken()
	const accounts, roles = "/api/v1/namespaces/shop/serviceaccounts", "/apis/rbac.authorization.k8s.io/v1/namespaces/shop/"
	_, made := call(vault, "POST", accounts+"/deployer/token", `{"kind":"TokenRequest","spec":{"expirationSeconds":600}}`)
	status, _ := made["status"].(map[string]any)
	deployer, _ := status["token"].(string)
	for _, tc := range []struct {
		name, token, method, path, body string
		want                            int
	}{
		{"no token", "", "GET", "/api/v1/namespaces/shop/pods", "", 401},
		{"a token that was changed", deployer[:len(deployer)-4] + "AAAA", "GET", "/api/v1/namespaces/shop/pods", "", 401},
		{"what the role allows", deployer, "GET", "/api/v1/namespaces/shop/pods", "", 200},
		{"another namespace", deployer, "GET", "/api/v1/namespaces/kube-system/pods", "", 403},
		{"another verb", deployer, "POST", accounts, `{"kind":"ServiceAccount","metadata":{"name":"a"}}`, 403},
		{"pods are not Vault's", vault, "GET", "/api/v1/namespaces/shop/pods", "", 403},
		{"a token for nine minutes", vault, "POST", accounts + "/deployer/token", `{"kind":"TokenRequest","spec":{"expirationSeconds":540}}`, 422},
		{"a token of nobody", vault, "POST", accounts + "/nobody/token", `{"kind":"TokenRequest","spec":{"expirationSeconds":600}}`, 404},
		{"another kind", vault, "POST", accounts, `{"kind":"Role","metadata":{"name":"a"}}`, 400},
		{"a namespace that is not there", vault, "POST", "/api/v1/namespaces/none/serviceaccounts", `{"kind":"ServiceAccount","metadata":{"name":"a"}}`, 404},
		{"a role binding", vault, "POST", roles + "rolebindings", `{"kind":"RoleBinding","metadata":{"name":"a"},"roleRef":{"kind":"Role","name":"pod-reader"}}`, 201},
		{"the same once more", vault, "POST", roles + "rolebindings", `{"kind":"RoleBinding","metadata":{"name":"a"},"roleRef":{"kind":"Role","name":"pod-reader"}}`, 409},
		{"a resource that is not there", vault, "GET", "/api/v1/namespaces/shop/secrets", "", 404},
		{"the account deleted", vault, "DELETE", accounts + "/deployer", "", 200},
		{"its token", deployer, "GET", "/api/v1/namespaces/shop/pods", "", 401},
		{"an account of the same name", vault, "POST", accounts, `{"kind":"ServiceAccount","metadata":{"name":"deployer"}}`, 201},
		{"the token of the old one", deployer, "GET", "/api/v1/namespaces/shop/pods", "", 401},
	} {
		if got, answer := call(tc.token, tc.method, tc.path, tc.body); got != tc.want {
			t.Errorf("%s: got %d %v, want %d", tc.name, got, answer["message"], tc.want)
		}
	}
}

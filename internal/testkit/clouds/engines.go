package clouds

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	"github.com/hashicorp/vault/api"
)

// Engines are the engines aws and kubernetes of a Vault, with the systems that they ask.
type Engines struct {
	AWS, Kubernetes string // the mounts
	STS             *RoleSTS
	Cluster         *Kubernetes
}

// WholeName is a template for the names of service accounts. It contains the display name of the token that asks, and so the issuance.
const WholeName = `{{ printf "v-%s-%s" .DisplayName (random 8) | truncate 62 | lowercase }}`

// NewEngines mounts and configures the engines, or configures them again. The engine aws has the role site. The engine kubernetes has
// the roles pods, which makes a service account that may list pods, and deployer, for a service account that exists.
func NewEngines(t testing.TB, vault *api.Client, suffix string) *Engines {
	t.Helper()
	e := &Engines{AWS: "aws" + suffix, Kubernetes: "kubernetes" + suffix, STS: NewRoleSTS(t, "site"), Cluster: NewKubernetes(t)}
	mounts, err := vault.Sys().ListMountsWithContext(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for kind, path := range map[string]string{"aws": e.AWS, "kubernetes": e.Kubernetes} {
		if mounts[path+"/"] != nil {
			continue
		}
		if err := vault.Sys().MountWithContext(t.Context(), path, &api.MountInput{Type: kind}); err != nil {
			t.Fatal(err)
		}
	}
	for path, data := range map[string]map[string]any{
		e.AWS + "/config/root": {
			"access_key": e.STS.KeyID, "secret_key": e.STS.Secret, "region": e.STS.Region,
			"sts_endpoint": e.STS.URL, "sts_region": e.STS.Region, "max_retries": 0,
		},
		e.AWS + "/roles/site": {"credential_type": "assumed_role", "role_arns": RoleARN("site"), "max_sts_ttl": "1h"},
		e.Kubernetes + "/config": {
			"kubernetes_host": e.Cluster.URL, "kubernetes_ca_cert": e.Cluster.CA, "service_account_jwt": e.Cluster.VaultToken(), "disable_local_ca_jwt": true,
		},
		e.Kubernetes + "/roles/pods": {
			"allowed_kubernetes_namespaces": []string{"shop"}, "kubernetes_role_name": "pod-reader", "name_template": WholeName,
		},
		e.Kubernetes + "/roles/deployer": {"allowed_kubernetes_namespaces": []string{"shop"}, "service_account_name": "deployer"},
	} {
		if _, err := vault.Logical().WriteWithContext(t.Context(), path, data); err != nil {
			t.Fatal(err)
		}
	}
	return e
}

// Accepts reports whether AWS accepts a key, as GetCallerIdentity says.
func (s *RoleSTS) Accepts(ctx context.Context, id, secret, token string) (bool, error) {
	body := []byte("Action=GetCallerIdentity&Version=" + STSVersion)
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, s.URL+"/", bytes.NewReader(body))
	if err != nil {
		return false, err
	}
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	key := aws.Credentials{AccessKeyID: id, SecretAccessKey: secret, SessionToken: token}
	if err := v4.NewSigner().SignHTTP(ctx, key, r, fmt.Sprintf("%x", sha256.Sum256(body)), "sts", s.Region, time.Now()); err != nil {
		return false, err
	}
	return accepted(http.DefaultClient.Do(r))
}

// Accepts reports whether the cluster lists the pods of the namespace shop for the holder of a token.
func (k *Kubernetes) Accepts(ctx context.Context, token string) (bool, error) {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM([]byte(k.CA))
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}}
	defer transport.CloseIdleConnections()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, k.URL+"/api/v1/namespaces/shop/pods", nil)
	if err != nil {
		return false, err
	}
	r.Header.Set("Authorization", "Bearer "+token)
	return accepted((&http.Client{Transport: transport}).Do(r))
}

func accepted(resp *http.Response, err error) (bool, error) {
	if err != nil {
		return false, err
	}
	_ = resp.Body.Close()
	switch resp.StatusCode {
	case http.StatusOK:
		return true, nil
	case http.StatusUnauthorized, http.StatusForbidden:
		return false, nil
	default:
		return false, fmt.Errorf("the other system answers %s", resp.Status)
	}
}

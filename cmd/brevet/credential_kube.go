package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/brevet-dev/brevet/client"
)

// KubeCredentialCmd is `brevet kube-credential`, a client-go credential plugin.
type KubeCredentialCmd struct{ HelperFlags }

// execCredential is the response of a credential plugin (client.authentication.k8s.io).
type execCredential struct {
	APIVersion string     `json:"apiVersion"`
	Kind       string     `json:"kind"`
	Status     kubeStatus `json:"status"`
}

type kubeStatus struct {
	ExpirationTimestamp   time.Time `json:"expirationTimestamp"`
	Token                 string    `json:"token,omitempty"`
	ClientCertificateData string    `json:"clientCertificateData,omitempty"`
	ClientKeyData         string    `json:"clientKeyData,omitempty"`
}

// kubeVersions are the supported versions of the interface. The fields that are used here are the same in both.
var kubeVersions = []string{"client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1"}

// Run prints a token, or a certificate with its key, for kubectl to read.
func (c *KubeCredentialCmd) Run(ctx context.Context, con *console) error {
	version, err := kubeVersion(os.Getenv("KUBERNETES_EXEC_INFO"))
	if err != nil {
		return err
	}
	broker, done, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer done()
	news := &console{out: con.err, err: con.err}
	token, err := c.obtain(ctx, news, broker, c.Param)
	if err != nil {
		return explain(news, c.hint(err), c.Task)
	}
	status, err := kubeStatusOf(token)
	if err != nil {
		return err
	}
	return json.NewEncoder(con.out).Encode(execCredential{APIVersion: version, Kind: "ExecCredential", Status: status})
}

// kubeVersion returns the version that kubectl requests in KUBERNETES_EXEC_INFO, whose value is info.
func kubeVersion(info string) (string, error) {
	if info == "" {
		return kubeVersions[0], nil
	}
	var asked struct {
		APIVersion string `json:"apiVersion"`
	}
	if err := json.Unmarshal([]byte(info), &asked); err != nil || !slices.Contains(kubeVersions, asked.APIVersion) {
		return "", errors.New("KUBERNETES_EXEC_INFO: unsupported apiVersion: set client.authentication.k8s.io/v1 or v1beta1 in the kubeconfig")
	}
	return asked.APIVersion, nil
}

func kubeStatusOf(token *client.Token) (kubeStatus, error) {
	status := kubeStatus{ExpirationTimestamp: token.Expires.UTC().Truncate(time.Second)}
	if certificate, key := token.Field("certificate"), token.Field("private_key"); certificate.Reveal() != "" && key.Reveal() != "" {
		status.ClientCertificateData, status.ClientKeyData = certificate.Reveal(), key.Reveal()
		return status, nil
	}
	bearer, err := bearerOf(token)
	if err != nil {
		return status, fmt.Errorf("%w (kubectl also accepts a certificate with its key)", err)
	}
	status.Token = bearer
	return status, nil
}

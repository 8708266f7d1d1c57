package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/brevet-dev/brevet/secret"
)

// EgressEnvCmd is `brevet egress env`.
type EgressEnvCmd struct {
	Dir string `help:"The gateway's folder." default:".brevet-egress" type:"path"`
}

// Run prints lines for a shell, or one JSON object.
func (c *EgressEnvCmd) Run(_ context.Context, con *console) error {
	proxy, err := os.ReadFile(filepath.Join(c.Dir, egressProxy))
	if err != nil {
		return fmt.Errorf("reading where the gateway is: %w", err)
	}
	all := egressEnviron(secret.New(string(proxy)), filepath.Join(c.Dir, egressCA))
	if con.json {
		object := map[string]string{}
		for _, pair := range all {
			name, value, _ := strings.Cut(pair, "=")
			object[name] = value
		}
		return con.encode(object)
	}
	for _, pair := range all {
		name, value, _ := strings.Cut(pair, "=")
		fmt.Fprintf(con.out, "export %s=%s\n", name, quote(value))
	}
	return nil
}

// egressEnviron leads curl, git, Go, Node, npm, pip, Python, and whatever else goes by such variables, through a gateway, and
// has them trust it.
func egressEnviron(proxy secret.Text, ca string) []string {
	var all []string
	for _, name := range []string{"HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "npm_config_proxy", "npm_config_https_proxy"} {
		all = append(all, name+"="+proxy.Reveal())
	}
	for _, name := range []string{
		"SSL_CERT_FILE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO", "NODE_EXTRA_CA_CERTS", "npm_config_cafile", "REQUESTS_CA_BUNDLE", "PIP_CERT", "AWS_CA_BUNDLE",
	} {
		all = append(all, name+"="+ca)
	}
	// Node goes by the variables when it is told so, and git sends the password without being asked for it.
	return append(all, "NODE_USE_ENV_PROXY=1", "GIT_HTTP_PROXY_AUTHMETHOD=basic", "NO_PROXY=localhost,127.0.0.1,::1", "no_proxy=localhost,127.0.0.1,::1")
}

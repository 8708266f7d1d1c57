package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"strings"
	"time"

	signednote "golang.org/x/mod/sumdb/note"
)

const longestLameDuck = 5 * time.Minute

// check reports every problem at once, so that one edit can fix them all.
func (c *Config) check() error {
	errs := []error{
		checkAddress("listen", c.Listen),
		checkIssuer(c.Issuer),
		exactlyOne("tls", choice{"workload_api", c.TLS.WorkloadAPI != ""}, choice{"cert_file with key_file", c.TLS.CertFile != ""}),
		required("catalogue", c.Catalogue),
		required("postgres.url_file", c.Postgres.URLFile),
		c.Vault.check(),
		c.checkResourceServers(),
	}
	if _, err := newLogger(c.Log, io.Discard); err != nil {
		errs = append(errs, err)
	}
	if c.LameDuck < 0 || c.LameDuck > longestLameDuck {
		errs = append(errs, fmt.Errorf("lame_duck: %s is not between 0s and %s", spell(c.LameDuck), spell(longestLameDuck)))
	}
	if (c.TLS.CertFile == "") != (c.TLS.KeyFile == "") {
		errs = append(errs, errors.New("tls: set cert_file and key_file together"))
	}
	for _, key := range c.FormerLedgerKeys {
		if _, err := signednote.NewVerifier(key); err != nil {
			errs = append(errs, fmt.Errorf("former_ledger_keys: %q is not a public key of a log: use the output of brevet audit keys", key))
		}
	}
	if c.MetricsListen != "" {
		errs = append(errs, checkAddress("metrics_listen", c.MetricsListen))
	}
	if len(c.TrustDomains) == 0 {
		errs = append(errs, errors.New("trust_domains: at least one is required"))
	}
	for _, td := range c.TrustDomains {
		errs = append(errs, td.check())
	}
	for _, w := range c.Webhooks {
		errs = append(errs, w.check())
	}
	for _, w := range c.Witnesses {
		errs = append(errs, w.check())
	}
	for _, a := range c.Anchors {
		errs = append(errs, a.check())
	}
	if c.People != nil {
		_, err := c.People.open()
		errs = append(errs, err)
	}
	if c.Console != nil {
		errs = append(errs, c.Console.check())
		if c.People == nil {
			errs = append(errs, errors.New("console: requires people"))
		}
	}
	return errors.Join(errs...)
}

func (v VaultConfig) check() error {
	errs := []error{
		required("vault.address", v.Address),
		exactlyOne("vault", choice{"token_file", v.TokenFile != ""}, choice{"approle", v.AppRole != nil}, choice{"jwt", v.JWT != nil}),
	}
	if v.AppRole != nil {
		errs = append(errs, required("vault.approle.role_id_file", v.AppRole.RoleIDFile),
			required("vault.approle.secret_id_file", v.AppRole.SecretIDFile))
	}
	if v.JWT != nil {
		errs = append(errs, required("vault.jwt.role", v.JWT.Role),
			exactlyOne("vault.jwt", choice{"token_file", v.JWT.TokenFile != ""}, choice{"workload_api", v.JWT.WorkloadAPI != ""}))
		if v.JWT.WorkloadAPI != "" {
			errs = append(errs, required("vault.jwt.audience", v.JWT.Audience))
		}
	}
	if u, err := url.Parse(v.Address); err == nil && u.Scheme == "https" && v.CAFile == "" {
		errs = append(errs, errors.New("vault.ca_file: required with https, so that only these roots authenticate Vault"))
	}
	return errors.Join(errs...)
}

func required(key, value string) error {
	if value == "" {
		return fmt.Errorf("%s: is required", key)
	}
	return nil
}

// choice is one of several keys. Exactly one of them must be set.
type choice struct {
	key string
	set bool
}

func exactlyOne(where string, choices ...choice) error {
	var set int
	var keys []string
	for _, c := range choices {
		keys = append(keys, c.key)
		if c.set {
			set++
		}
	}
	if set != 1 {
		return fmt.Errorf("%s: set exactly one of %s; %d are set", where, strings.Join(keys, ", "), set)
	}
	return nil
}

func checkAddress(key, address string) error {
	if _, _, err := net.SplitHostPort(address); err != nil {
		return fmt.Errorf("%s: %q is not host:port, such as 127.0.0.1:8443", key, address)
	}
	return nil
}

func checkIssuer(issuer string) error {
	u, err := url.Parse(issuer)
	if err != nil || u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return fmt.Errorf("issuer: %q is not an https URL without user, query and fragment, such as https://brevet.example", issuer)
	}
	return nil
}

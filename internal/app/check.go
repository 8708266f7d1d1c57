package app

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/brevet-dev/brevet/attest"
	"github.com/brevet-dev/brevet/internal/clientip"
	pages "github.com/brevet-dev/brevet/internal/console"
	"github.com/brevet-dev/brevet/internal/httpapi"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"golang.org/x/mod/sumdb/note"
)

// problems are what is wrong with a configuration.
type problems []error

func (p *problems) add(format string, args ...any) { *p = append(*p, fmt.Errorf(format, args...)) }

func (p *problems) require(key, value string) {
	if value == "" {
		p.add("%s: is required", key)
	}
}

func (p *problems) address(key, address string) {
	if _, _, err := net.SplitHostPort(address); err != nil {
		p.add("%s: %q is not host:port, such as 127.0.0.1:8443", key, address)
	}
}

// choice is one of several alternative keys, of which exactly one must be set.
type choice struct {
	key string
	set bool
}

func (p *problems) exactlyOne(where string, choices ...choice) {
	var set int
	var keys []string
	for _, c := range choices {
		keys = append(keys, c.key)
		if c.set {
			set++
		}
	}
	if set != 1 {
		p.add("%s: set exactly one of %s; %d are set", where, strings.Join(keys, ", "), set)
	}
}

// together reports a certificate without its key, or a key without its certificate.
func (p *problems) together(where, certFile, keyFile string) {
	if (certFile == "") != (keyFile == "") {
		p.add("%s: set cert_file and key_file together", where)
	}
}

func (p *problems) networks(where string, cidrs []string) {
	for _, cidr := range cidrs {
		if _, err := netip.ParsePrefix(cidr); err != nil {
			p.add("%s.allow_private_cidrs: %q is not a network such as 10.1.0.0/16", where, cidr)
		}
	}
}

// check reports every problem at once, so that one edit can fix them all. It reads no other files.
func (c *Config) check() error {
	var p problems
	p.address("listen", c.Listen)
	if u, err := url.Parse(c.Issuer); err != nil || u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		p.add("issuer: %q is not an https URL without user, query and fragment, such as https://brevet.example", c.Issuer)
	}
	if _, err := clientip.ParseProxies(c.TrustedProxies); err != nil {
		p.add("trusted_proxies: %w", err)
	}
	p.exactlyOne("tls", choice{"workload_api", c.TLS.WorkloadAPI != ""}, choice{"cert_file with key_file", c.TLS.CertFile != ""})
	p.together("tls", c.TLS.CertFile, c.TLS.KeyFile)
	p.require("catalogue", c.Catalogue)
	p.require("postgres.url_file", c.Postgres.URLFile)
	c.Vault.check(&p)
	_, err := c.resourceServers()
	_, logErr := NewLogger(c.Log, io.Discard)
	p = append(p, err, logErr)
	if c.LameDuck < 0 || c.LameDuck > 5*time.Minute {
		asked := strings.NewReplacer("h0m0s", "h", "m0s", "m").Replace(c.LameDuck.String())
		p.add("lame_duck: %s is not between 0s and 5m", asked)
	}
	for _, key := range c.FormerLedgerKeys {
		if _, err := note.NewVerifier(key); err != nil {
			p.add("former_ledger_keys: %q is not a public key of a log: use the output of brevet audit keys", key)
		}
	}
	if c.MetricsListen != "" {
		p.address("metrics_listen", c.MetricsListen)
	}
	if len(c.TrustDomains) == 0 {
		p.add("trust_domains: at least one is required")
	}
	for _, td := range c.TrustDomains {
		p.require("trust_domains.name", td.Name)
		p.exactlyOne("trust_domains."+td.Name, choice{"workload_api", td.WorkloadAPI != ""}, choice{"bundle_file", td.BundleFile != ""},
			choice{"bundle_endpoint", td.BundleEndpoint != nil})
	}
	_, _, _, err = c.roles()
	p = append(p, err)
	for _, w := range c.Webhooks {
		where := "webhooks." + w.Name
		p.require("webhooks.name", w.Name)
		p.exactlyOne(where, choice{"url", w.URL != ""}, choice{"url_file", w.URLFile != ""})
		p.networks(where, w.AllowPrivateCIDRs)
		for _, prefix := range w.Within {
			if _, err := spiffeid.FromString(prefix); err != nil {
				p.add("%s.within: %q is not a SPIFFE ID: %w", where, prefix, err)
			}
		}
	}
	for _, w := range c.Witnesses {
		where := "witnesses." + w.Name
		p.require("witnesses.name", w.Name)
		p.require(where+".url", w.URL)
		p.require(where+".key", w.Key)
		p.networks(where, w.AllowPrivateCIDRs)
	}
	for _, a := range c.Anchors {
		where := "anchors." + a.Name
		p.require("anchors.name", a.Name)
		p.networks(where, a.AllowPrivateCIDRs)
		p.exactlyOne(where, choice{"file", a.File != ""}, choice{"url", a.URL != ""}, choice{"git", a.Git != ""})
	}
	if c.People != nil {
		_, err := c.People.open(func() time.Time { return time.Time{} }) // no token is read
		p = append(p, err)
	}
	if c.Console != nil {
		c.Console.check(&p)
		if c.People == nil {
			p.add("console: requires people")
		}
	}
	return errors.Join(p...)
}

func (v VaultConfig) check(p *problems) {
	p.require("vault.address", v.Address)
	p.exactlyOne("vault", choice{"token_file", v.TokenFile != ""}, choice{"approle", v.AppRole != nil}, choice{"jwt", v.JWT != nil})
	if v.AppRole != nil {
		p.require("vault.approle.role_id_file", v.AppRole.RoleIDFile)
		p.require("vault.approle.secret_id_file", v.AppRole.SecretIDFile)
	}
	if v.JWT != nil {
		p.require("vault.jwt.role", v.JWT.Role)
		p.exactlyOne("vault.jwt", choice{"token_file", v.JWT.TokenFile != ""}, choice{"workload_api", v.JWT.WorkloadAPI != ""})
		if v.JWT.WorkloadAPI != "" {
			p.require("vault.jwt.audience", v.JWT.Audience)
		}
	}
	if u, err := url.Parse(v.Address); err == nil && u.Scheme == "https" && v.CAFile == "" {
		p.add("vault.ca_file: required with https, so that only these roots authenticate Vault")
	}
}

func (c *ConsoleConfig) check(p *problems) {
	p.address("console.listen", c.Listen)
	if _, err := pages.ParseURL(c.URL); err != nil {
		p.add("console.url: %w", err)
	}
	p.together("console", c.CertFile, c.KeyFile)
	for _, d := range []struct {
		key         string
		value, most time.Duration
		mostKey     string
	}{
		{"session_length", c.SessionLength, pages.LongestSession, "24h"},
		{"session_idle", c.SessionIdle, c.SessionLength, "session_length"},
		{"login_max_age", c.LoginMaxAge, c.SessionLength, "session_length"},
	} {
		if d.value < time.Minute || d.value > d.most {
			p.add("console.%s: %s is not between 1m and %s", d.key, d.value, d.mostKey)
		}
	}
	host, _, _ := net.SplitHostPort(c.Listen)
	address, err := netip.ParseAddr(host)
	if c.CertFile == "" && host != "localhost" && (err != nil || !address.IsLoopback()) {
		p.add("console.cert_file: required unless listen is a loopback address, to protect session cookies")
	}
}

// roles returns the workloads that have a role, and where they have it.
func (c *Config) roles() (auditors, admins, orchestrators []httpapi.Role, err error) {
	var errs []error
	for _, td := range c.TrustDomains {
		for _, kind := range []struct {
			key       string
			workloads []WorkloadRoleConfig
			to        *[]httpapi.Role
		}{{"auditors", td.Auditors, &auditors}, {"admins", td.Admins, &admins}, {"orchestrators", td.Orchestrators, &orchestrators}} {
			for _, w := range kind.workloads {
				role, err := w.role(td.Name)
				if err != nil {
					errs = append(errs, fmt.Errorf("trust_domains.%s.%s: %w", td.Name, kind.key, err))
				}
				*kind.to = append(*kind.to, role)
			}
		}
	}
	return auditors, admins, orchestrators, errors.Join(errs...)
}

// role returns the role of the workload in a trust domain.
func (w WorkloadRoleConfig) role(trustDomain string) (role httpapi.Role, err error) {
	if role.ID, err = attest.ParseID(w.ID); err != nil {
		return role, fmt.Errorf("%q is not a SPIFFE ID: %w", w.ID, err)
	}
	td, err := spiffeid.TrustDomainFromString(trustDomain)
	if err != nil {
		return role, err
	}
	if len(w.Within) == 0 {
		role.TrustDomains = []spiffeid.TrustDomain{td}
	}
	for _, prefix := range w.Within {
		limit, err := spiffeid.FromString(prefix)
		switch {
		case err != nil:
			return role, fmt.Errorf("%s: within %q: %w", w.ID, prefix, err)
		case !limit.MemberOf(td):
			return role, fmt.Errorf("%s: within %q: not in the trust domain", w.ID, prefix)
		}
		role.Within = append(role.Within, limit)
	}
	return role, nil
}

// resourceServers returns the workloads that may introspect tokens.
func (c *Config) resourceServers() (all []httpapi.ResourceServer, _ error) {
	var p problems
	seen := map[string]bool{}
	for _, rs := range c.ResourceServers {
		id, err := attest.ParseID(rs.ID)
		switch {
		case err != nil:
			p.add("resource_servers: %q is not a SPIFFE ID: %w", rs.ID, err)
		case len(rs.Audiences) == 0 || slices.Contains(rs.Audiences, ""):
			p.add("resource_servers: %s: audiences is empty, or has an empty entry: list the audiences of scopes", rs.ID)
		case seen[rs.ID]:
			p.add("resource_servers: %s is listed twice: merge its audiences into one list", rs.ID)
		}
		seen[rs.ID] = true
		all = append(all, httpapi.ResourceServer{ID: id, Audiences: rs.Audiences})
	}
	return all, errors.Join(p...)
}

package app

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	pages "github.com/brevet-dev/brevet/internal/console"
	"go.yaml.in/yaml/v4"
)

// Config is the whole configuration of `brevet serve`: one YAML file. An unknown key prevents the start. Relative paths are
// relative to the folder of the file. The file never contains secrets, only paths to them.
type Config struct {
	// Address to serve HTTPS on, as host:port.
	Listen string `yaml:"listen"`
	// URL of the issuer in tokens. A JWT-SVID must have it as its only audience.
	Issuer string `yaml:"issuer"`
	// Additional hosts that are accepted in the Host header and in DPoP proofs. The issuer's host is always accepted.
	Hosts []string `yaml:"hosts,omitempty"`
	// Addresses and networks of the proxies in front of the API and the console, such as 127.0.0.1 or 10.1.0.0/16. Only a request from one of these has the client address that Forwarded or X-Forwarded-For names, for rate limits, the record of refusals and the log. Whoever can connect from there can claim any address, so list nothing that sandboxes use. Default: none.
	TrustedProxies []string `yaml:"trusted_proxies,omitempty"`
	// How long a stopping replica keeps serving while /readyz returns 503, so that a load balancer notices before connections are refused. At most 5m. Default 0s, for deployments without a load balancer.
	LameDuck time.Duration `yaml:"lame_duck,omitempty"`
	// Name of the ledger in its signed checkpoints. It is permanent: another name means another ledger. Default: the issuer without https:// and with /ledger appended.
	LedgerName string `yaml:"ledger_name,omitempty"`
	// File that holds the key from which the keys for list cursors, DPoP nonces, and logins in progress and kept forms of the console are derived: 32 bytes or more, the same on every replica. Default: the key that the first migration stored in the database, which whoever can read the whole database can read too.
	CursorKeyFile string `yaml:"cursor_key_file,omitempty"`
	// Public keys that signed earlier checkpoints, as brevet audit keys prints them. Needed if Vault's key for the ledger was lost, or if its name changed.
	FormerLedgerKeys []string `yaml:"former_ledger_keys,omitempty"`
	// The server's certificate.
	TLS TLSConfig `yaml:"tls"`
	// The trust domains whose sandboxes are served. Each has its own bundle; they are never merged.
	TrustDomains []TrustDomainConfig `yaml:"trust_domains"`
	// Workloads that receive tokens and may introspect them: services, and gateways in front of services.
	ResourceServers []ResourceServerConfig `yaml:"resource_servers,omitempty"`
	// The people who can log in, and their roles. If omitted, only workloads can call, and requests that require approval are never approved.
	People *PeopleConfig `yaml:"people,omitempty"`
	// The web pages where people approve requests and search the record. If omitted, none are served.
	Console *ConsoleConfig `yaml:"console,omitempty"`
	// Folder with the catalogue: scopes (.yaml) and policies (.cedar).
	Catalogue string `yaml:"catalogue"`
	// Whether a second admin must approve a catalogue before it is in force. Default false.
	CatalogueSecondAdmin bool `yaml:"catalogue_second_admin"`
	// The database that stores the record.
	Postgres PostgresConfig `yaml:"postgres"`
	// External systems to notify of pending approvals, decisions and unrevoked credentials.
	Webhooks []WebhookConfig `yaml:"webhooks,omitempty"`
	// Independent witnesses that cosign the ledger's checkpoints.
	Witnesses []WitnessConfig `yaml:"witnesses,omitempty"`
	// Places that store copies of the ledger's checkpoints.
	Anchors []AnchorConfig `yaml:"anchors,omitempty"`
	// The Vault or OpenBao that creates the credentials.
	Vault VaultConfig `yaml:"vault"`
	// GitHub Apps whose installation access tokens scopes can issue, by the name that scopes use.
	GitHub map[string]GitHubConfig `yaml:"github,omitempty"`
	// Address to serve Prometheus metrics on, as host:port. Keep it off public networks. Empty: no metrics.
	MetricsListen string `yaml:"metrics_listen,omitempty"`
	// OTLP/HTTP endpoint for traces, as a URL. Empty: no traces.
	TracesEndpoint string `yaml:"traces_endpoint,omitempty"`
	// Log settings.
	Log LogConfig `yaml:"log,omitempty"`
}

// TLSConfig says where the server's certificate comes from: the Workload API or files.
type TLSConfig struct {
	// Workload API socket (unix:///path) that gives the broker's own X.509-SVID.
	WorkloadAPI string `yaml:"workload_api,omitempty"`
	// SPIFFE ID or hint of the SVID to use, if the Workload API offers several.
	SVID string `yaml:"svid,omitempty"`
	// PEM certificate chain, for clients that verify the broker by its DNS name.
	CertFile string `yaml:"cert_file,omitempty"`
	// PEM private key of cert_file.
	KeyFile string `yaml:"key_file,omitempty"`
}

// TrustDomainConfig is one trust domain. Exactly one bundle source is set.
type TrustDomainConfig struct {
	// Name of the trust domain, as in spiffe://name/...
	Name string `yaml:"name"`
	// Workload API socket (unix:///path) that gives this domain's bundle.
	WorkloadAPI string `yaml:"workload_api,omitempty"`
	// SPIFFE bundle file (JSON), read again when it changes.
	BundleFile string `yaml:"bundle_file,omitempty"`
	// SPIFFE federation endpoint to fetch the bundle from.
	BundleEndpoint *BundleEndpointConfig `yaml:"bundle_endpoint,omitempty"`
	// Workloads that may read all records of this trust domain, or, if `within` is set, the records below those paths. Every other workload reads only its own.
	Auditors []WorkloadRoleConfig `yaml:"auditors,omitempty"`
	// Workloads that may revoke credentials, set quarantines and end tasks in this trust domain.
	Admins []WorkloadRoleConfig `yaml:"admins,omitempty"`
	// Workloads that may end the tasks of all sandboxes of this trust domain, such as the runtime that starts the sandboxes.
	Orchestrators []WorkloadRoleConfig `yaml:"orchestrators,omitempty"`
}

// WorkloadRoleConfig gives a role to a workload. It is {id: ..., within: [...]}, or just a SPIFFE ID for the whole trust
// domain.
type WorkloadRoleConfig struct {
	// SPIFFE ID of the workload. An entry that is just a SPIFFE ID gives the role in all of the trust domain.
	ID string `yaml:"id"`
	// Limits the role to sandboxes at or below these SPIFFE IDs of this trust domain, such as spiffe://acme.example/research. At least one.
	Within []string `yaml:"within,omitempty"`
}

// ResourceServerConfig allows a workload to introspect tokens.
type ResourceServerConfig struct {
	// SPIFFE ID of the workload.
	ID string `yaml:"id"`
	// Audiences of the tokens that it may introspect, exactly as in the scopes. At least one.
	Audiences []string `yaml:"audiences"`
}

// PeopleConfig is an OpenID Connect provider and the roles of its people.
type PeopleConfig struct {
	// Issuer of the provider, exactly as in its ID tokens.
	Issuer string `yaml:"issuer"`
	// OAuth client whose ID tokens are accepted. It must be their only audience.
	ClientID string `yaml:"client_id"`
	// Audiences of ID tokens with which a sandbox may request on behalf of a person. It must not contain client_id: tokens for that audience log a person in. Empty: no sandbox can request on behalf of a person.
	DelegationAudiences []string `yaml:"delegation_audiences,omitempty"`
	// PEM roots for the provider's certificate, instead of the system's.
	CAFile string `yaml:"ca_file,omitempty"`
	// Claim with a person's groups, a list of strings. Default groups.
	GroupsClaim string `yaml:"groups_claim,omitempty"`
	// Claim whose value fills {owner} in `owners`. People must not be able to change their own value. Default preferred_username.
	OwnerClaim string `yaml:"owner_claim,omitempty"`
	// Roles of groups. To decide a request, a person must be an approver for its sandbox and a member of the group that its scope names.
	Roles []PeopleRoleConfig `yaml:"roles"`
	// Patterns for the SPIFFE IDs of sandboxes that belong to a person, such as spiffe://acme.example/users/{owner}/**. People cannot decide requests of their own sandboxes.
	Owners []string `yaml:"owners,omitempty"`
	// One person, as the provider's sub or as issuer#sub, who is an admin although no group makes them one. This ends an hour after the database was created, or when another admin first makes a call, whichever is earlier.
	BootstrapAdmin string `yaml:"bootstrap_admin,omitempty"`
}

// PeopleRoleConfig gives a role to a group.
type PeopleRoleConfig struct {
	// admin, approver or auditor.
	Role string `yaml:"role"`
	// Group of the provider.
	Group string `yaml:"group"`
	// Limits the role to sandboxes at or below these SPIFFE IDs, such as spiffe://acme.example or spiffe://acme.example/research. Empty: everywhere.
	Within []string `yaml:"within,omitempty"`
}

// ConsoleConfig is the console: the web pages for people, on a separate address.
type ConsoleConfig struct {
	// Address to serve the console on, as host:port. Without cert_file it must be a loopback address, for a local proxy that terminates TLS; then set trusted_proxies too.
	Listen string `yaml:"listen"`
	// URL of the console: https and a host, or http://localhost and a port for development. The provider redirects logins to /callback there, and passkeys are valid for this host only.
	URL string `yaml:"url"`
	// PEM certificate chain that browsers trust.
	CertFile string `yaml:"cert_file,omitempty"`
	// PEM private key of cert_file.
	KeyFile string `yaml:"key_file,omitempty"`
	// File that holds the secret of people.client_id, if that client has one.
	ClientSecretFile string `yaml:"client_secret_file,omitempty"`
	// How long a session lasts without activity. Pages that refresh by themselves are no activity. At least 1m. Default 30m.
	SessionIdle time.Duration `yaml:"session_idle,omitempty"`
	// How long a session lasts in any case. A person who has left a group can read for this long what its members can read. At most 24h. Default 8h.
	SessionLength time.Duration `yaml:"session_length,omitempty"`
	// How long after a login a person can vote, revoke or change anything else. After that, the console sends the person to the provider and keeps the form. A person who has left a group can act as its member for this long. At least 1m. Default 15m.
	LoginMaxAge time.Duration `yaml:"login_max_age,omitempty"`
}

// WebhookConfig is one external system that Brevet notifies by signed calls (Standard Webhooks), or a Slack channel.
type WebhookConfig struct {
	// Lower-case letters, digits, - and _. Deliveries are recorded under this name: a renamed webhook starts over.
	Name string `yaml:"name"`
	// https URL to call. Set either url or url_file.
	URL string `yaml:"url,omitempty"`
	// File that holds the URL, if the URL is a secret, as with Slack.
	URLFile string `yaml:"url_file,omitempty"`
	// File that holds the secret to sign with: whsec_ and base64 of 24 to 64 bytes. With two secrets, separated by a space, both sign each call. Not needed for slack.
	SecretFile string `yaml:"secret_file,omitempty"`
	// json (Standard Webhooks) or slack (an incoming webhook). Default json.
	Format string `yaml:"format,omitempty"`
	// Events to send: approval.waiting, approval.decided, approval.break_glass and credential.unrevoked.
	Events []string `yaml:"events"`
	// Limits the events to sandboxes at or below these SPIFFE IDs. Empty: everywhere.
	Within      []string `yaml:"within,omitempty"`
	ReachConfig `yaml:",inline"`
}

// WitnessConfig is a witness that cosigns checkpoints of the ledger. It cosigns only checkpoints that continue those it
// cosigned before (c2sp.org/tlog-witness).
type WitnessConfig struct {
	// Lower-case letters, digits, - and _. Cosignatures are stored under this name: if the key changes, change the name too.
	Name string `yaml:"name"`
	// https URL of the witness, to which /add-checkpoint is appended.
	URL string `yaml:"url"`
	// Public key that verifies its cosignatures, as the witness publishes it: name+id+base64 (c2sp.org/tlog-cosignature, Ed25519).
	Key         string `yaml:"key"`
	ReachConfig `yaml:",inline"`
}

// AnchorConfig is a place where copies of checkpoints are stored. Exactly one of file, url and git is set.
type AnchorConfig struct {
	// Lower-case letters, digits, - and _.
	Name string `yaml:"name"`
	// File to append to, preferably where the database's administrators cannot write. At startup the ledger must continue the last checkpoint in the file, or nothing is issued. Each replica writes its own file.
	File string `yaml:"file,omitempty"`
	// https URL to POST checkpoints to, as text/plain.
	URL string `yaml:"url,omitempty"`
	// Folder of a git work tree in which checkpoint.txt is committed, and pushed if there is a remote.
	Git string `yaml:"git,omitempty"`
	// Minimum time between two copies. Default 1m.
	Every       time.Duration `yaml:"every,omitempty"`
	ReachConfig `yaml:",inline"`
}

// ReachConfig says which certificates and addresses are accepted in calls to a URL.
type ReachConfig struct {
	// PEM roots for the receiver's certificate, instead of the system's.
	CAFile string `yaml:"ca_file,omitempty"`
	// Private networks that may be called, such as 10.1.0.0/16.
	AllowPrivateCIDRs []string `yaml:"allow_private_cidrs,omitempty"`
	// Allows an http URL with a loopback address, for development.
	AllowHTTPLoopback bool `yaml:"allow_http_loopback,omitempty"`
}

// BundleEndpointConfig is a SPIFFE federation endpoint.
type BundleEndpointConfig struct {
	// HTTPS URL of the endpoint.
	URL string `yaml:"url"`
	// https_web (Web PKI) or https_spiffe (the endpoint authenticates with an SVID).
	Profile string `yaml:"profile"`
	// For https_spiffe: the SPIFFE ID of the endpoint.
	SPIFFEID string `yaml:"spiffe_id,omitempty"`
	// For https_spiffe: file with the initial bundle (JSON). For https_web: PEM roots instead of the system's.
	TrustFile string `yaml:"trust_file,omitempty"`
}

// PostgresConfig is the database.
type PostgresConfig struct {
	// File that holds the connection URL of the broker's own role, which may only append. Hosts other than this machine require sslmode=verify-full.
	URLFile string `yaml:"url_file"`
	// Maximum number of connections for reading. API calls that only read use half of them. Appending uses a separate connection. Default 8.
	MaxConnections int32 `yaml:"max_connections,omitempty"`
	// File that holds the connection URL for auditors' searches. Its role must be a member of brevet_auditor. The server may be a standby. Default url_file.
	AuditURLFile string `yaml:"audit_url_file,omitempty"`
	// Maximum number of connections for auditors' searches, of which those over the API use half. No other call waits for them. Default 4.
	AuditConnections int32 `yaml:"audit_connections,omitempty"`
	// Accept a connection over a network without TLS that verifies the server's name (sslmode=verify-full). Others on that network can then read and change the record on its way, and pose as the server. Default false.
	InsecureNetwork bool `yaml:"insecure_network,omitempty"`
}

// VaultConfig is Vault or OpenBao. Exactly one of token_file, approle and jwt is set.
type VaultConfig struct {
	// URL of Vault.
	Address string `yaml:"address"`
	// PEM roots for Vault's certificate; no other roots are trusted. Required for https.
	CAFile string `yaml:"ca_file,omitempty"`
	// Vault namespace.
	Namespace string `yaml:"namespace,omitempty"`
	// File that holds a Vault token, kept fresh by an agent.
	TokenFile string `yaml:"token_file,omitempty"`
	// AppRole login.
	AppRole *AppRoleConfig `yaml:"approle,omitempty"`
	// JWT login: auth/jwt with a JWT-SVID, or auth/kubernetes with a service account token.
	JWT *VaultJWTConfig `yaml:"jwt,omitempty"`
	// Mount of the Transit engine. Default transit.
	TransitMount string `yaml:"transit_mount,omitempty"`
	// Transit key that signs tokens with ES256. The keys for EdDSA and RS256 have its name and -eddsa or -rs256. Default brevet.
	SigningKey string `yaml:"signing_key,omitempty"`
	// Role of Vault's token store that creates the parent tokens of dynamic credentials. Default brevet.
	TokenRole string `yaml:"token_role,omitempty"`
	// Timeout of one call. Default 5s.
	Timeout time.Duration `yaml:"timeout,omitempty"`
	// How long resource servers may cache the JWKS. A new key version signs only after this time. Default 5m.
	JWKSMaxAge time.Duration `yaml:"jwks_max_age,omitempty"`
}

// GitHubConfig is a GitHub App. Its private key is in Vault: see brevet bootstrap --github-key.
type GitHubConfig struct {
	// Client ID of the App, from its settings page.
	ClientID string `yaml:"client_id"`
	// URL of GitHub's REST API. Default https://api.github.com. GitHub Enterprise Server has it at https://HOST/api/v3.
	URL string `yaml:"url,omitempty"`
	// PEM roots for the certificate of a GitHub Enterprise Server. Default: the system's roots.
	CAFile string `yaml:"ca_file,omitempty"`
}

// AppRoleConfig is a Vault AppRole.
type AppRoleConfig struct {
	// Mount of the auth method. Default approle.
	Mount string `yaml:"mount,omitempty"`
	// File that holds the role id.
	RoleIDFile string `yaml:"role_id_file"`
	// File that holds the secret id.
	SecretIDFile string `yaml:"secret_id_file"`
}

// VaultJWTConfig is a JWT login to Vault. Either token_file or workload_api is set.
type VaultJWTConfig struct {
	// Mount of the auth method. Default jwt.
	Mount string `yaml:"mount,omitempty"`
	// Vault role to log in as.
	Role string `yaml:"role"`
	// File that holds the JWT, such as a Kubernetes service account token.
	TokenFile string `yaml:"token_file,omitempty"`
	// Workload API socket (unix:///path) that gives a JWT-SVID.
	WorkloadAPI string `yaml:"workload_api,omitempty"`
	// Audience of the JWT-SVID.
	Audience string `yaml:"audience,omitempty"`
}

// LogConfig is the log, on standard error.
type LogConfig struct {
	// debug, info, warn or error. Default info.
	Level string `yaml:"level,omitempty"`
	// text or json. Default text.
	Format string `yaml:"format,omitempty"`
}

const maxConfigSize = 1 << 20

// Load reads, completes and checks a configuration file.
func Load(path string) (Config, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return Config{}, fmt.Errorf("reading the configuration file (--config or BREVET_CONFIG): %w", err)
	}
	if len(data) > maxConfigSize {
		return Config{}, fmt.Errorf("%s is larger than 1 MiB, so it is not a Brevet configuration file", path)
	}
	var cfg Config
	if err := yaml.Load(data, &cfg, yaml.WithKnownFields(), yaml.WithUniqueKeys()); err != nil {
		return Config{}, fmt.Errorf("%s: %w", path, err)
	}
	cfg.complete(filepath.Dir(path))
	if err := cfg.check(); err != nil {
		return Config{}, fmt.Errorf("%s: %w", path, err)
	}
	return cfg, nil
}

// complete sets defaults and makes paths absolute from dir.
func (c *Config) complete(dir string) {
	c.LedgerName = cmp.Or(c.LedgerName, strings.Trim(strings.TrimPrefix(c.Issuer, "https://"), "/")+"/ledger")
	c.Postgres.MaxConnections = cmp.Or(c.Postgres.MaxConnections, 8)
	c.Postgres.AuditConnections = cmp.Or(c.Postgres.AuditConnections, 4)
	c.Vault.TransitMount = cmp.Or(c.Vault.TransitMount, "transit")
	c.Vault.SigningKey = cmp.Or(c.Vault.SigningKey, "brevet")
	c.Vault.TokenRole = cmp.Or(c.Vault.TokenRole, "brevet")
	c.Vault.Timeout = cmp.Or(c.Vault.Timeout, 5*time.Second)
	c.Vault.JWKSMaxAge = cmp.Or(c.Vault.JWKSMaxAge, 5*time.Minute)
	c.Log.Level = cmp.Or(c.Log.Level, "info")
	c.Log.Format = cmp.Or(c.Log.Format, "text")
	paths := []*string{&c.CursorKeyFile, &c.TLS.CertFile, &c.TLS.KeyFile, &c.Catalogue, &c.Postgres.URLFile, &c.Postgres.AuditURLFile, &c.Vault.CAFile, &c.Vault.TokenFile}
	for i := range c.TrustDomains {
		paths = append(paths, &c.TrustDomains[i].BundleFile)
		if e := c.TrustDomains[i].BundleEndpoint; e != nil {
			paths = append(paths, &e.TrustFile)
		}
	}
	if a := c.Vault.AppRole; a != nil {
		a.Mount = cmp.Or(a.Mount, "approle")
		paths = append(paths, &a.RoleIDFile, &a.SecretIDFile)
	}
	if j := c.Vault.JWT; j != nil {
		j.Mount = cmp.Or(j.Mount, "jwt")
		paths = append(paths, &j.TokenFile)
	}
	if c.People != nil {
		paths = append(paths, &c.People.CAFile)
	}
	if c.Console != nil {
		c.Console.SessionLength = cmp.Or(c.Console.SessionLength, pages.DefaultSessionLength)
		c.Console.SessionIdle = cmp.Or(c.Console.SessionIdle, min(pages.DefaultSessionIdle, c.Console.SessionLength))
		c.Console.LoginMaxAge = cmp.Or(c.Console.LoginMaxAge, min(pages.DefaultLoginMaxAge, c.Console.SessionLength))
		paths = append(paths, &c.Console.CertFile, &c.Console.KeyFile, &c.Console.ClientSecretFile)
	}
	for i := range c.Webhooks {
		w := &c.Webhooks[i]
		paths = append(paths, &w.URLFile, &w.SecretFile, &w.CAFile)
	}
	for i := range c.Witnesses {
		paths = append(paths, &c.Witnesses[i].CAFile)
	}
	for i := range c.Anchors {
		a := &c.Anchors[i]
		a.Every = cmp.Or(a.Every, time.Minute)
		paths = append(paths, &a.File, &a.Git, &a.CAFile)
	}
	for _, p := range paths {
		if *p != "" && !filepath.IsAbs(*p) {
			*p = filepath.Join(dir, *p)
		}
	}
}

// UnmarshalYAML accepts a SPIFFE ID by itself, or one with limits. It returns an error if within is empty, because an empty
// limit would give nothing.
func (w *WorkloadRoleConfig) UnmarshalYAML(n *yaml.Node) error {
	if n.Kind == yaml.ScalarNode {
		return n.Load(&w.ID)
	}
	type plain WorkloadRoleConfig
	if err := n.Load((*plain)(w), yaml.WithKnownFields(), yaml.WithUniqueKeys()); err != nil {
		return err
	}
	if len(w.Within) == 0 {
		return fmt.Errorf("%q: within is empty: list SPIFFE IDs in it, or write only the SPIFFE ID for the whole trust domain", w.ID)
	}
	return nil
}

// MarshalYAML writes the form that UnmarshalYAML reads.
func (w WorkloadRoleConfig) MarshalYAML() (any, error) {
	if len(w.Within) == 0 {
		return w.ID, nil
	}
	type plain WorkloadRoleConfig
	return plain(w), nil
}

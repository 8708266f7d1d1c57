package main

import (
	"fmt"
	"maps"

	"github.com/hashicorp/go-hclog"
	jwtauth "github.com/hashicorp/vault-plugin-auth-jwt"
	kv "github.com/hashicorp/vault-plugin-secrets-kv"
	"github.com/hashicorp/vault/audit"
	"github.com/hashicorp/vault/builtin/credential/approle"
	"github.com/hashicorp/vault/builtin/logical/database"
	"github.com/hashicorp/vault/builtin/logical/pki"
	"github.com/hashicorp/vault/builtin/logical/ssh"
	"github.com/hashicorp/vault/builtin/logical/transit"
	"github.com/hashicorp/vault/command/server"
	"github.com/hashicorp/vault/helper/metricsutil"
	"github.com/hashicorp/vault/internalshared/configutil"
	"github.com/hashicorp/vault/plugins/database/postgresql"
	"github.com/hashicorp/vault/sdk/helper/consts"
	"github.com/hashicorp/vault/sdk/logical"
	"github.com/hashicorp/vault/vault"
)

func newCore(config *server.Config, logger hclog.Logger) (*vault.Core, error) {
	storage, err := openStorage(config.Storage, logger)
	if err != nil {
		return nil, fmt.Errorf("opening the storage: %w", err)
	}
	inmemSink, sink, _, err := configutil.SetupTelemetry(&configutil.SetupTelemetryOpts{
		Config: config.Telemetry, ServiceName: "vault", DisplayName: "Vault",
		UserAgent: "brevet-vaultd", ClusterName: config.ClusterName,
	})
	if err != nil {
		return nil, fmt.Errorf("setting up metrics: %w", err)
	}
	// HAPhysical and ClusterAddr stay unset: with either, the core opens a separate cluster port.
	return vault.NewCore(&vault.CoreConfig{
		RawConfig:       config,
		Physical:        storage,
		StorageType:     config.Storage.Type,
		RedirectAddr:    config.APIAddr,
		Logger:          logger,
		LogLevel:        config.LogLevel,
		DisableMlock:    config.DisableMlock,
		DefaultLeaseTTL: config.DefaultLeaseTTL,
		MaxLeaseTTL:     config.MaxLeaseTTL,
		BuiltinRegistry: registry{},
		AuditBackends:   map[string]audit.Factory{"file": audit.NewFileBackend},
		LogicalBackends: map[string]logical.Factory{"database": database.Factory, "kv": kv.Factory},
		MetricsHelper:   metricsutil.NewMetricsHelper(inmemSink, false),
		MetricSink:      sink,
	})
}

// registry is the plugin catalogue. Only plugins that it names can be mounted.
type registry struct{}

var secretEngines = with(cloudEngines, map[string]logical.Factory{
	"transit": transit.Factory,
	"pki":     pki.Factory,
	"ssh":     ssh.Factory,
	"kv":      kv.Factory,
})

func with(more, engines map[string]logical.Factory) map[string]logical.Factory {
	maps.Copy(engines, more)
	return engines
}

var authMethods = map[string]logical.Factory{
	"approle": approle.Factory,
	"jwt":     jwtauth.Factory,
}

const postgresPlugin = "postgresql-database-plugin"

// Get returns a function that yields a logical.Factory for engines and auth methods, and the constructor itself for
// databases. Vault distinguishes the two by the plugin's type alone.
func (registry) Get(name string, kind consts.PluginType) (func() (any, error), bool) {
	var factory logical.Factory
	switch kind {
	case consts.PluginTypeDatabase:
		return postgresql.New, name == postgresPlugin
	case consts.PluginTypeSecrets:
		factory = secretEngines[name]
	case consts.PluginTypeCredential:
		factory = authMethods[name]
	case consts.PluginTypeUnknown:
	}
	return func() (any, error) { return factory, nil }, factory != nil
}

func (registry) Keys(kind consts.PluginType) []string {
	switch kind {
	case consts.PluginTypeDatabase:
		return []string{postgresPlugin}
	case consts.PluginTypeSecrets:
		return keys(secretEngines)
	case consts.PluginTypeCredential:
		return keys(authMethods)
	case consts.PluginTypeUnknown:
	}
	return nil
}

func keys(factories map[string]logical.Factory) []string {
	names := make([]string, 0, len(factories))
	for name := range factories {
		names = append(names, name)
	}
	return names
}

func (r registry) Contains(name string, kind consts.PluginType) bool {
	_, found := r.Get(name, kind)
	return found
}

func (r registry) DeprecationStatus(name string, kind consts.PluginType) (consts.DeprecationStatus, bool) {
	return consts.Supported, r.Contains(name, kind)
}

func (registry) IsBuiltinEntPlugin(string, consts.PluginType) bool { return false }

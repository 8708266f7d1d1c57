package main

import (
	"errors"
	"fmt"

	"github.com/brevet-dev/brevet/attest"
	"github.com/brevet-dev/brevet/internal/httpapi"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"go.yaml.in/yaml/v4"
)

func bundleSpecs(domains []TrustDomainConfig) ([]attest.BundleSpec, []spiffeid.TrustDomain, error) {
	var specs []attest.BundleSpec
	var names []spiffeid.TrustDomain
	for _, d := range domains {
		name, err := spiffeid.TrustDomainFromString(d.Name)
		if err != nil {
			return nil, nil, fmt.Errorf("trust_domains: %q: %w", d.Name, err)
		}
		spec := attest.BundleSpec{TrustDomain: name, WorkloadAPI: d.WorkloadAPI, File: d.BundleFile}
		if e := d.BundleEndpoint; e != nil {
			if spec.Endpoint, err = endpointSpec(*e); err != nil {
				return nil, nil, fmt.Errorf("trust_domains.%s.bundle_endpoint: %w", d.Name, err)
			}
		}
		specs, names = append(specs, spec), append(names, name)
	}
	return specs, names, nil
}

func endpointSpec(cfg BundleEndpointConfig) (*attest.EndpointSpec, error) {
	spec := &attest.EndpointSpec{URL: cfg.URL, Profile: cfg.Profile}
	if cfg.Profile != attest.ProfileHTTPSSPIFFE {
		spec.CAFile = cfg.TrustFile
		return spec, nil
	}
	id, err := attest.ParseID(cfg.SPIFFEID)
	if err != nil {
		return nil, fmt.Errorf("spiffe_id: %w", err)
	}
	spec.SPIFFEID, spec.BundleFile = id, cfg.TrustFile
	return spec, nil
}

func (td TrustDomainConfig) check() error {
	name := "trust_domains." + td.Name
	errs := []error{
		required("trust_domains.name", td.Name),
		exactlyOne(name, choice{"workload_api", td.WorkloadAPI != ""}, choice{"bundle_file", td.BundleFile != ""},
			choice{"bundle_endpoint", td.BundleEndpoint != nil}),
	}
	for _, role := range []struct {
		key     string
		holders []WorkloadRoleConfig
	}{{"auditors", td.Auditors}, {"admins", td.Admins}, {"orchestrators", td.Orchestrators}} {
		for _, holder := range role.holders {
			if _, err := holder.role(td.Name); err != nil {
				errs = append(errs, fmt.Errorf("%s.%s: %w", name, role.key, err))
			}
		}
	}
	return errors.Join(errs...)
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
func (w WorkloadRoleConfig) MarshalYAML() (any, error) { //nolint:unparam // it is a yaml.Marshaler
	if len(w.Within) == 0 {
		return w.ID, nil
	}
	type plain WorkloadRoleConfig
	return plain(w), nil
}

// role returns the role of the workload in a trust domain.
func (w WorkloadRoleConfig) role(trustDomain string) (httpapi.Role, error) {
	id, err := attest.ParseID(w.ID)
	if err != nil {
		return httpapi.Role{}, fmt.Errorf("%q is not a SPIFFE ID: %w", w.ID, err)
	}
	td, err := spiffeid.TrustDomainFromString(trustDomain)
	if err != nil {
		return httpapi.Role{}, err
	}
	role := httpapi.Role{ID: id}
	if len(w.Within) == 0 {
		role.TrustDomains = []spiffeid.TrustDomain{td}
	}
	for _, prefix := range w.Within {
		limit, err := spiffeid.FromString(prefix)
		if err != nil {
			return httpapi.Role{}, fmt.Errorf("%s: within %q: %w", w.ID, prefix, err)
		}
		if !limit.MemberOf(td) {
			return httpapi.Role{}, fmt.Errorf("%s: within %q: not in the trust domain", w.ID, prefix)
		}
		role.Within = append(role.Within, limit)
	}
	return role, nil
}

// roles lists the workloads that have one role, and where they have it.
func roles(cfg Config, holders func(TrustDomainConfig) []WorkloadRoleConfig) []httpapi.Role {
	var all []httpapi.Role
	for _, d := range cfg.TrustDomains {
		for _, holder := range holders(d) {
			role, err := holder.role(d.Name)
			if err != nil {
				continue // loading the configuration has refused this
			}
			all = append(all, role)
		}
	}
	return all
}

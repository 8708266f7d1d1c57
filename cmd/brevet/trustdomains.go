package main

import (
	"fmt"

	"github.com/brevet-dev/brevet/attest"
	"github.com/brevet-dev/brevet/server"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
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

// roles lists who has one role, in which trust domain.
func roles(cfg Config, names func(TrustDomainConfig) []string) []server.Role {
	var all []server.Role
	for _, d := range cfg.TrustDomains {
		for _, id := range names(d) {
			all = append(all, server.Role{
				ID:           spiffeid.RequireFromString(id), // checked when the configuration was loaded
				TrustDomains: []spiffeid.TrustDomain{spiffeid.RequireTrustDomainFromString(d.Name)},
			})
		}
	}
	return all
}

package main

import (
	"errors"
	"fmt"
	"slices"

	"github.com/brevet-dev/brevet/attest"
	"github.com/brevet-dev/brevet/internal/httpapi"
)

func (c ResourceServerConfig) open() (httpapi.ResourceServer, error) {
	id, err := attest.ParseID(c.ID)
	if err != nil {
		return httpapi.ResourceServer{}, fmt.Errorf("%q is not a SPIFFE ID: %w", c.ID, err)
	}
	if len(c.Audiences) == 0 || slices.Contains(c.Audiences, "") {
		return httpapi.ResourceServer{}, fmt.Errorf("%s: audiences is empty, or has an empty entry: list the audiences of scopes", c.ID)
	}
	return httpapi.ResourceServer{ID: id, Audiences: c.Audiences}, nil
}

func (c *Config) checkResourceServers() error {
	var errs []error
	seen := map[string]bool{}
	for _, rs := range c.ResourceServers {
		_, err := rs.open()
		if err == nil && seen[rs.ID] {
			err = fmt.Errorf("%s is listed twice: merge its audiences into one list", rs.ID)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("resource_servers: %w", err))
		}
		seen[rs.ID] = true
	}
	return errors.Join(errs...)
}

func resourceServers(cfg Config) []httpapi.ResourceServer {
	var all []httpapi.ResourceServer
	for _, rs := range cfg.ResourceServers {
		opened, err := rs.open()
		if err != nil {
			continue // loading the configuration has refused this
		}
		all = append(all, opened)
	}
	return all
}

package httpapi

import (
	"net/http"

	"github.com/brevet-dev/brevet/attest"
	. "github.com/brevet-dev/brevet/openapi"
	"github.com/brevet-dev/brevet/scopes"
)

// ListScopes lists the scopes that a sandbox may request.
func (s *Server) ListScopes(w http.ResponseWriter, r *http.Request) {
	const operation = "listScopes"
	serve(s, w, r, operation, func(who attest.Identity) error {
		if err := s.rules.check(r, who, operation, nil); err != nil {
			return err
		}
		if !s.offers.Allow(who.ID().String(), s.cfg.Now()) {
			return &requestError{kind: errPace, detail: "pace"}
		}
		offers, catalogue := s.cfg.Broker.Offers(who)
		list := ScopeList{Catalogue: catalogue, Scopes: make([]OfferedScope, len(offers))}
		for i, offer := range offers {
			list.Scopes[i] = offeredScope(offer)
		}
		writeJSON(w, http.StatusOK, list)
		return nil
	})
}

func offeredScope(offer scopes.Offer) OfferedScope {
	scope := offer.Scope
	out := OfferedScope{
		Name: scope.Name, Title: scope.Title, Authority: string(scope.Authority), Params: make(map[string]ScopeParam, len(scope.Params)),
		TTLDefault: seconds(scope.TTL.Default), TTLMax: seconds(scope.TTL.Max),
		Approval: OfferedScopeApproval(offer.Approval), Credential: scope.Credential.Kind, Bind: BindNone,
		Csr: scope.Credential.Kind == scopes.KindPKI && !scope.Credential.ServerKey,
	}
	if scope.Credential.Bind != "" {
		out.Bind = OfferedScopeBind(scope.Credential.Bind)
	}
	for name, p := range scope.Params {
		param := ScopeParam{Type: string(p.Type), Pattern: p.Pattern, MaxLength: p.MaxLength, Values: p.Values}
		if p.Type == scopes.ParamInt {
			param.Min, param.Max = &p.Min, &p.Max
		}
		out.Params[name] = param
	}
	for _, rule := range scope.Egress {
		out.Egress = append(out.Egress, egressRule(rule))
	}
	return out
}

func egressRule(rule scopes.Egress) EgressRule {
	if len(rule.Databases) > 0 {
		return EgressRule{Hosts: rule.Hosts, Databases: rule.Databases}
	}
	as := EgressSendAs(rule.Send.As)
	if as == "" {
		as = SendBearer
	}
	return EgressRule{
		Hosts: rule.Hosts, Methods: rule.Methods, Paths: rule.Paths,
		Send: EgressSend{
			As: as, Name: rule.Send.Name, User: rule.Send.User, Field: rule.Send.Field, Service: rule.Send.Service, Region: rule.Send.Region,
		},
	}
}

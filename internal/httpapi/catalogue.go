package httpapi

import (
	"cmp"
	"errors"
	"net/http"
	"regexp"
	"strings"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/broker/approval"
	. "github.com/brevet-dev/brevet/openapi"
	"github.com/brevet-dev/brevet/scopes"
)

// maxProblems is the maximum number of catalogue problems in a response.
const maxProblems = 100

var digestForm = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)

// forCatalogue authenticates the caller, and checks that it has the role to read or change the catalogue in every trust domain,
// because the catalogue concerns all of them. It answers with what do returns. actor is the caller's name in the record.
func (s *Server) forCatalogue(
	w http.ResponseWriter, r *http.Request, operation string, do func(who caller, actor string) (status int, body any, err error),
) {
	serve(s, w, r, operation, func(who caller) error {
		of := []role{s.roles.admin}
		if r.Method == http.MethodGet {
			of = append(of, s.roles.auditor)
		}
		if err := s.overAll(r, who, of...); err != nil {
			return err
		}
		status, body, err := do(who, actorOf(who).ID())
		switch {
		case errors.Is(err, broker.ErrOtherCatalogue):
			return &requestError{kind: broker.ErrOtherCatalogue, field: "If-Match", detail: "if_match"}
		case errors.Is(err, broker.ErrOwnProposal):
			return &requestError{kind: broker.ErrOwnProposal, detail: "own_proposal"}
		case err != nil:
			return notFound(err, "digest")
		}
		writeJSON(w, status, body)
		return nil
	})
}

// GetCatalogue returns the catalogue in force.
func (s *Server) GetCatalogue(w http.ResponseWriter, r *http.Request) {
	s.forCatalogue(w, r, "getCatalogue", func(who caller, _ string) (int, any, error) {
		if err := s.rules.check(r, who, nil); err != nil {
			return 0, nil, err
		}
		head, files, err := s.cfg.Broker.CatalogueInForce(r.Context())
		if err != nil {
			return 0, nil, err
		}
		open, err := s.cfg.Broker.OpenRequests(r.Context())
		if err != nil {
			return 0, nil, err
		}
		tag(w, head.Digest)
		return http.StatusOK, Catalogue{
			Digest: head.Digest, OpenRequests: open, Version: head.Version, Since: head.Since, Actor: head.Actor, Reason: head.Reason, Files: filesOf(files),
		}, nil
	})
}

// GetCatalogueFiles returns the files of any stored catalogue.
func (s *Server) GetCatalogueFiles(w http.ResponseWriter, r *http.Request, digest Digest) {
	s.forCatalogue(w, r, "getCatalogueFiles", func(who caller, _ string) (int, any, error) {
		if !digestForm.MatchString(digest) {
			return 0, nil, broker.ErrNotFound
		}
		if err := s.rules.check(r, who, nil); err != nil {
			return 0, nil, err
		}
		files, err := s.cfg.Broker.CatalogueFiles(r.Context(), digest)
		return http.StatusOK, CatalogueFiles{Digest: digest, Files: filesOf(files)}, err
	})
}

// ListCatalogueChanges lists the changes of the catalogue, with proposals and decisions.
func (s *Server) ListCatalogueChanges(w http.ResponseWriter, r *http.Request, params ListCatalogueChangesParams) {
	s.forCatalogue(w, r, "listCatalogueChanges", func(who caller, _ string) (int, any, error) {
		if err := s.rules.check(r, who, nil); err != nil {
			return 0, nil, err
		}
		changes, err := s.cfg.Broker.CatalogueChanges(r.Context(), cmp.Or(params.Limit, defaultLimit))
		out := CatalogueHistory{Changes: make([]CatalogueChange, 0, len(changes))}
		for _, c := range changes {
			out.Changes = append(out.Changes, changeOf(c))
		}
		return http.StatusOK, out, err
	})
}

// ApplyCatalogue replaces the catalogue in force, or proposes to.
func (s *Server) ApplyCatalogue(w http.ResponseWriter, r *http.Request, _ ApplyCatalogueParams) {
	s.forCatalogue(w, r, "applyCatalogue", func(who caller, actor string) (int, any, error) {
		ask, err := readCatalogueOrder[CatalogueOrder](s, w, r, who)
		if err != nil {
			return 0, nil, err
		}
		order := broker.CatalogueOrder{Actor: actor, Reason: ask.Reason, Force: ask.Force}
		if order.Base, err = ifMatch(r); err != nil {
			return 0, nil, err
		}
		if err := checkText("reason", ask.Reason); err != nil {
			return 0, nil, err
		}
		for _, f := range ask.Files {
			order.Files = append(order.Files, scopes.File{Name: f.Name, Data: []byte(f.Text)})
		}
		ctx, cancel := uncancelled(r.Context())
		defer cancel()
		change, err := s.cfg.Broker.ApplyCatalogue(ctx, order)
		if problems, ok := errors.AsType[scopes.Problems](err); ok {
			err = &requestError{kind: errCatalogue, field: "files", detail: "catalogue", tell: func(p *Problem) {
				// They quote the catalogue, but only to the caller that sent it.
				for _, one := range problems[:min(len(problems), maxProblems)] {
					p.Problems = append(p.Problems, CatalogueProblem{File: one.File, Line: one.Line, What: one.What})
				}
			}}
		}
		if err != nil {
			return 0, nil, err
		}
		out := changeOf(change)
		if change.State == broker.CatalogueProposed {
			return http.StatusAccepted, out, nil
		}
		tag(w, change.Digest)
		return http.StatusOK, out, nil
	})
}

// DecideCatalogue records an admin's decision on the proposal of another admin.
func (s *Server) DecideCatalogue(w http.ResponseWriter, r *http.Request, digest Digest, _ DecideCatalogueParams) {
	s.forCatalogue(w, r, "decideCatalogue", func(who caller, actor string) (int, any, error) {
		if !digestForm.MatchString(digest) {
			return 0, nil, broker.ErrNotFound
		}
		ask, err := readCatalogueOrder[CatalogueDecision](s, w, r, who)
		if err != nil {
			return 0, nil, err
		}
		verdict := broker.CatalogueVerdict{Actor: actor, Digest: digest, Verdict: approval.Deny, Reason: ask.Reason, Force: ask.Force}
		if ask.Verdict == CatalogueApprove {
			verdict.Verdict = approval.Approve
		}
		if verdict.Base, err = ifMatch(r); err != nil {
			return 0, nil, err
		}
		if err := checkText("reason", ask.Reason); err != nil {
			return 0, nil, err
		}
		ctx, cancel := uncancelled(r.Context())
		defer cancel()
		change, err := s.cfg.Broker.DecideCatalogue(ctx, verdict)
		return http.StatusOK, changeOf(change), err
	})
}

// readCatalogueOrder reads an order, and then checks again that the caller is an admin, as readAdminOrder does.
func readCatalogueOrder[T any](s *Server, w http.ResponseWriter, r *http.Request, who caller) (T, error) {
	out, err := readOrder[T](s, w, r, who)
	if err == nil {
		err = s.overAll(r, who, s.roles.admin)
	}
	return out, err
}

// ifMatch returns the digest of the catalogue that a change replaces. It refuses "*", lists and weak tags, which do not name
// exactly one.
func ifMatch(r *http.Request) (string, error) {
	given := r.Header.Get("If-Match")
	if given == "" {
		return "", &requestError{kind: errUnconditional, detail: "if_match"}
	}
	digest, quoted := strings.CutPrefix(given, `"`)
	digest, closed := strings.CutSuffix(digest, `"`)
	if !quoted || !closed || !digestForm.MatchString(digest) {
		return "", &requestError{kind: errParameter, field: "If-Match", detail: "parameter_header"}
	}
	return digest, nil
}

// tag sets the ETag to the catalogue in force, for If-Match of the next change.
func tag(w http.ResponseWriter, digest string) { w.Header().Set("ETag", `"`+digest+`"`) }

func filesOf(files []scopes.File) []CatalogueFile {
	out := make([]CatalogueFile, 0, len(files))
	for _, f := range files {
		out = append(out, CatalogueFile{Name: f.Name, Text: string(f.Data)})
	}
	return out
}

func changeOf(c broker.CatalogueChange) CatalogueChange {
	return CatalogueChange{
		ID: c.ID, Digest: c.Digest, Base: c.Base, Version: c.Version, State: CatalogueState(c.State), Actor: c.Actor,
		Reason: c.Reason, Time: c.Time, Decider: c.Decider, DecidedReason: c.DecidedReason, DecidedAt: c.DecidedAt,
		Forced: c.Forced,
	}
}

package httpapi_test

import (
	"net/http"
	"slices"
	"testing"

	"github.com/brevet-dev/brevet/internal/httpapi"
	"github.com/brevet-dev/brevet/openapi"
	"github.com/go-chi/chi/v5"
	"github.com/google/go-cmp/cmp"
)

func TestRoutesMatchTheOpenAPIDocument(t *testing.T) {
	t.Parallel()
	want, err := httpapi.Operations()
	if err != nil {
		t.Fatal(err)
	}
	mux := chi.NewRouter()
	httpapi.HandlerFromMux(httpapi.Unimplemented{}, mux)
	var got []string
	err = chi.Walk(mux, func(method, route string, _ http.Handler, _ ...func(http.Handler) http.Handler) error {
		got = append(got, method+" "+route)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(want)
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("routes differ from openapi.yaml (-described +served):\n%s", diff)
	}
}

func TestEveryProblemCodeHasItsStatus(t *testing.T) {
	t.Parallel()
	want := map[openapi.ProblemCode]int{
		"malformed_body": 400, "invalid_parameter": 400, "invalid_cursor": 400, "unauthenticated": 401, "denied": 403,
		"invalid_token": 401, "insufficient_scope": 403, "invalid_dpop_proof": 401, "use_dpop_nonce": 401,
		"not_found": 404, "method_not_allowed": 405, "already_issued": 409, "already_reported": 409, "too_large": 413,
		"unsupported_media_type": 415, "misdirected": 421, "invalid_request": 422, "idempotency_mismatch": 422,
		"rate_limited": 429, "not_allowed": 403, "revoked": 409, "vault_refused": 503, "internal": 500, "ledger_unavailable": 503, "ledger_full": 503, "vault_unavailable": 503, "github_unavailable": 503, "github_refused": 503, "mint_mismatch": 503,
		"bundle_unavailable": 503, "provider_unavailable": 503, "own_request": 403, "not_eligible": 403, "passkey_required": 403, "decided": 409,
		"stale": 409, "not_approved": 409, "precondition_required": 428, "precondition_failed": 412, "own_proposal": 403, "overloaded": 503,
		"invalid_catalogue": 422, "vault_not_prepared": 409, "superseded": 503, "not_sealed": 503, "too_broad": 422,
	}
	if diff := cmp.Diff(want, httpapi.ProblemCodes()); diff != "" {
		t.Errorf("the table of problems changed, and clients depend on it (-want +got):\n%s", diff)
	}
	for code := range httpapi.ProblemCodes() {
		if !code.Valid() {
			t.Errorf("openapi.yaml does not list the code %s", code)
		}
	}
}

package githubapi

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

// An answer that GitHub would not give is found: otherwise the double could drift from GitHub unseen.
func TestWrongAnswersAreFound(t *testing.T) {
	doc, err := document()
	if err != nil {
		t.Fatal(err)
	}
	if err := doc.Validate(t.Context()); err != nil {
		t.Logf("GitHub's description has mistakes of its own: %v", err)
	}
	route, err := routeOf(doc, "POST", "/app/installations/{installation_id}/access_tokens")
	if err != nil {
		t.Fatal(err)
	}
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/app/installations/1/access_tokens", http.NoBody)
	asked, err := checkRequest(t.Context(), r, route, map[string]string{"installation_id": "1"})
	if err != nil {
		t.Fatal(err)
	}
	header := http.Header{"Content-Type": {"application/json"}}
	good := `{"token":"ghs_1","expires_at":"2026-01-01T00:00:00Z","permissions":{"issues":"read"},"repository_selection":"selected"}`
	if err := checkAnswer(t.Context(), asked, 201, header, []byte(good)); err != nil {
		t.Error(err)
	}
	for _, bad := range []string{
		`{}`, `[]`, `{"token":1,"expires_at":"2026-01-01T00:00:00Z"}`, `{"token":"ghs_1","expires_at":"2026-01-01T00:00:00Z","repository_selection":"some"}`,
		`{"token":"ghs_1","expires_at":"2026-01-01T00:00:00Z","permissions":{"issues":"all"}}`,
		`{"token":"ghs_1","expires_at":"2026-01-01T00:00:00Z","repositories":[{"full_name":"acme/api"}]}`,
	} {
		if err := checkAnswer(t.Context(), asked, 201, header, []byte(bad)); err == nil {
			t.Errorf("%s passes for an answer of GitHub", bad)
		}
	}
}

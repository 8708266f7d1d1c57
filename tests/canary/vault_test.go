package canary_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/brevet-dev/brevet/internal/testkit"
)

// gate is the proxy between the broker and Vault. It remembers each token that passes, with the call that returned it.
type gate struct {
	mu     sync.Mutex
	tokens map[string]string
}

func (g *gate) open(t *testing.T, addr string) string {
	t.Helper()
	target, err := url.Parse(addr)
	if err != nil {
		t.Fatal(err)
	}
	front := httptest.NewServer(&httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(target)
			r.Out.Header.Del("Accept-Encoding") // so that answers arrive as plain text
			g.remember("header", r.In.Header.Get("X-Vault-Token"))
		},
		ModifyResponse: g.read,
		ErrorLog:       slog.NewLogLogger(slog.DiscardHandler, slog.LevelError),
	})
	t.Cleanup(front.Close)
	return front.URL
}

func (g *gate) remember(from, token string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if token != "" && g.tokens[token] == "" {
		g.tokens[token] = from
	}
}

// read remembers the tokens of an answer, and passes the answer on unchanged.
func (g *gate) read(resp *http.Response) error {
	text, err := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	resp.Body = io.NopCloser(bytes.NewReader(text))
	if err != nil {
		return err
	}
	var answer struct {
		Auth struct {
			Token string `json:"client_token"`
		}
		Wrap struct {
			Token string `json:"token"`
		} `json:"wrap_info"`
	}
	if len(text) > 0 && json.Unmarshal(text, &answer) == nil {
		g.remember("answer", answer.Auth.Token)
		g.remember("wrapping", answer.Wrap.Token)
	}
	return nil
}

// ownTokens adds the broker's login, and the token that each credential was made with, to the secrets.
func (w *world) ownTokens(t *testing.T) {
	t.Helper()
	w.gate.mu.Lock()
	defer w.gate.mu.Unlock()
	for token, from := range w.gate.tokens {
		w.secrets[fmt.Sprintf("broker's Vault token %d (%s)", len(w.secrets), from)] = token
	}
	// There are at least: the broker's login, and tokens for two database logins, the Vault token, and one credential of each of
	// the four kinds.
	if got := len(w.gate.tokens); got < 8 {
		t.Errorf("%d tokens went to Vault and back, want at least 8", got)
	}
}

// logVault makes Vault log everything it can.
func (w *world) logVault(t *testing.T) {
	t.Helper()
	if _, err := w.Vault(t).Logical().WriteWithContext(t.Context(), "sys/loggers", map[string]any{"level": "trace"}); err != nil {
		t.Fatal(err)
	}
}

// appendTo appends to Vault's log, as Vault does.
func appendTo(t *testing.T, text string) {
	t.Helper()
	log, err := os.OpenFile(filepath.Join(testkit.Folder(t), "vault.log"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = log.Close() }()
	if _, err := io.WriteString(log, "\n"+text+"\n"); err != nil {
		t.Fatal(err)
	}
}

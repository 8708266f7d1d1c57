package people

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/brevet-dev/brevet/internal/jws"
	"github.com/brevet-dev/brevet/internal/quiet"
	"github.com/coreos/go-oidc/v3/oidc"
	"github.com/go-jose/go-jose/v4"
)

const (
	fetchTimeout = 5 * time.Second

	// maxDocument is the largest discovery document and the largest key set, in bytes.
	maxDocument = 1 << 20

	// maxQuote is how much of a provider's answer an error quotes, in bytes.
	maxQuote = 300

	// fetchPause is the shortest time from the end of one fetch to the start of the next. Anybody can trigger a fetch with an
	// unknown key id.
	fetchPause = 5 * time.Second

	// keysFresh is how long keys are used before they are fetched again, so a withdrawn key may be accepted for this long.
	// While the provider is down, keys are used up to keysStale.
	keysFresh = 10 * time.Minute
	keysStale = time.Hour

	minRSABits = 2048
)

// keys caches the provider's keys. It fetches them on first use and when they may have changed.
type keys struct {
	issuer string
	client *http.Client
	now    func() time.Time

	mu       sync.Mutex
	set      map[string]crypto.PublicKey // by key id; never modified, only replaced
	pairwise bool                        // the provider gives a person another subject for each client
	fetched  time.Time                   // when set was fetched
	tried    time.Time                   // end of the last fetch, successful or not
	err      error                       // error of the last fetch
	inflight chan struct{}               // closed when the running fetch ends; nil if none runs
}

func newKeys(cfg Config) *keys {
	var transport http.RoundTripper
	if cfg.HTTPClient != nil {
		transport = cfg.HTTPClient.Transport
	}
	if transport == nil {
		// This transport uses no proxy from the environment and keeps no connection. It does not decompress, so that the size
		// limit applies to the bytes received.
		transport = quiet.New(&http.Transport{
			TLSHandshakeTimeout: fetchTimeout, DisableKeepAlives: true, DisableCompression: true,
			MaxResponseHeaderBytes: 64 << 10,
		})
	}
	return &keys{issuer: cfg.Issuer, now: cfg.Now, client: &http.Client{
		Timeout: fetchTimeout, Transport: capped{transport},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// find returns the key with the given id. It fetches if there are no keys, if they are old, or if the id is unknown, but
// not within fetchPause of the last fetch.
func (k *keys) find(ctx context.Context, id string) (crypto.PublicKey, error) {
	if key, fresh := k.look(id); key != nil && fresh {
		return key, nil
	}
	if err := k.refresh(ctx); err != nil {
		return nil, err
	}
	key, _ := k.look(id)
	k.mu.Lock()
	defer k.mu.Unlock()
	switch usable := k.set != nil && k.now().Sub(k.fetched) <= keysStale; {
	case usable && key != nil:
		return key, nil
	case usable && k.err == nil:
		return nil, errKey
	default: // the last fetch may have missed this key
		return nil, fmt.Errorf("%w: %w", ErrProviderUnavailable, k.err)
	}
}

func (k *keys) look(id string) (key crypto.PublicKey, fresh bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.set[id], k.set != nil && k.now().Sub(k.fetched) <= keysFresh
}

// refresh waits for the running fetch, or starts one that later callers share. The fetch continues if a caller's context
// ends.
func (k *keys) refresh(ctx context.Context) error {
	k.mu.Lock()
	if k.inflight == nil {
		if !k.tried.IsZero() && k.now().Sub(k.tried) < fetchPause {
			k.mu.Unlock()
			return nil
		}
		k.inflight = make(chan struct{})
		go k.fetch(context.WithoutCancel(ctx), k.inflight)
	}
	done := k.inflight
	k.mu.Unlock()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", ErrProviderUnavailable, ctx.Err())
	}
}

// fetch replaces the keys. On failure it keeps the old keys and records the error.
func (k *keys) fetch(ctx context.Context, done chan struct{}) {
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	set, pairwise, err := k.download(ctx)
	k.mu.Lock()
	defer k.mu.Unlock()
	k.tried, k.err = k.now(), err
	if err == nil {
		k.set, k.pairwise, k.fetched = set, pairwise, k.tried
	}
	k.inflight = nil
	close(done)
}

// download fetches the discovery document each time, because a provider may move its keys. It also reports whether the
// provider has only pairwise subjects (OpenID Connect Core, section 8).
func (k *keys) download(ctx context.Context) (set map[string]crypto.PublicKey, pairwise bool, err error) {
	provider, err := oidc.NewProvider(oidc.ClientContext(ctx, k.client), k.issuer)
	if err != nil {
		// The error quotes the provider's whole response.
		return nil, false, fmt.Errorf("discovering the provider: %q", truncate(err.Error(), maxQuote))
	}
	var document struct {
		JWKSURI  string   `json:"jwks_uri"`
		Subjects []string `json:"subject_types_supported"`
	}
	if err := provider.Claims(&document); err != nil {
		return nil, false, fmt.Errorf("discovering the provider: %w", err)
	}
	if err := checkURL(document.JWKSURI); err != nil {
		return nil, false, fmt.Errorf("discovering the provider: jwks_uri: %w", err)
	}
	if strings.HasPrefix(k.issuer, "https:") && !strings.HasPrefix(document.JWKSURI, "https:") {
		return nil, false, errors.New("discovering the provider: jwks_uri: the URL is not https")
	}
	if set, err = k.downloadSet(ctx, document.JWKSURI); err != nil {
		return nil, false, fmt.Errorf("fetching the provider's keys: %w", err)
	}
	return set, len(document.Subjects) > 0 && !slices.Contains(document.Subjects, "public"), nil
}

// namesDiffer reports whether the provider gives a person another subject for each client, according to the last fetch.
func (k *keys) namesDiffer() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.pairwise
}

// downloadSet returns the keys that can sign ID tokens, and ignores others.
func (k *keys) downloadSet(ctx context.Context, url string) (_ map[string]crypto.PublicKey, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return nil, err
	}
	resp, err := k.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, resp.Body.Close()) }()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the provider returned status %d", resp.StatusCode)
	}
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, err
	}
	var document struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := json.Unmarshal(text, &document); err != nil {
		return nil, errors.New("the key set is not JSON")
	}
	set := make(map[string]crypto.PublicKey)
	for _, text := range document.Keys {
		var key jose.JSONWebKey
		if json.Unmarshal(text, &key) != nil || key.KeyID == "" || !jws.MayVerify(text) || !strong(key.Key) {
			continue
		}
		// Two different keys with one id are an error, because either could be meant.
		if known, ok := set[key.KeyID].(interface{ Equal(crypto.PublicKey) bool }); ok && !known.Equal(key.Key) {
			return nil, errors.New("the key set has two keys with the same id")
		}
		set[key.KeyID] = key.Key
	}
	if len(set) == 0 {
		return nil, errors.New("the key set has no key that can sign ID tokens")
	}
	return set, nil
}

// keyFits maps the accepted algorithms to a check of the key type. It has no symmetric algorithm.
var keyFits = map[string]func(crypto.PublicKey) bool{
	"RS256": jws.IsRSA, "PS256": jws.IsRSA, "ES256": isP256, "EdDSA": isEd25519, "Ed25519": isEd25519,
}

func isP256(key crypto.PublicKey) bool {
	k, ok := key.(*ecdsa.PublicKey)
	return ok && k.Curve == elliptic.P256()
}

func isEd25519(key crypto.PublicKey) bool {
	_, ok := key.(ed25519.PublicKey)
	return ok
}

// strong also excludes symmetric and private keys, which do not belong in a key set.
func strong(key any) bool {
	if k, ok := key.(*rsa.PublicKey); ok {
		return k.N.BitLen() >= minRSABits
	}
	return isP256(key) || isEd25519(key)
}

// capped fails responses larger than maxDocument before they are completely in memory.
type capped struct{ http.RoundTripper }

// RoundTrip returns a response whose body fails if it is too long.
func (c capped) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := c.RoundTripper.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	resp.Body = &cappedBody{resp.Body, maxDocument}
	return resp, nil
}

type cappedBody struct {
	io.ReadCloser

	left int
}

func (b *cappedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if b.left -= n; b.left < 0 {
		return 0, fmt.Errorf("the response is larger than %d bytes", maxDocument)
	}
	return n, err
}

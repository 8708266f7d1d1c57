package testkit

import (
	"crypto/ed25519"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/binary"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/internal/safehttp"
	"github.com/brevet-dev/brevet/internal/secret"
	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
)

// Witness is a witness (c2sp.org/tlog-witness) of one log, behind real TLS. It is written from the specification and
// shares no code with the implementation that it tests.
type Witness struct {
	// Key is the witness's public key.
	Key string

	server  *httptest.Server
	name    string
	private ed25519.PrivateKey
	id      []byte
	origin  string
	log     note.Verifiers

	mu     sync.Mutex
	seen   tlog.Tree
	calls  int
	broken http.HandlerFunc
}

// NewWitness starts a witness that knows the log by its name and its keys and has seen no checkpoint of it.
func NewWitness(t testing.TB, name, origin string, keys ...string) *Witness {
	t.Helper()
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	typed := append([]byte{0x04}, public...)
	id := sha256.Sum256(append([]byte(name+"\n"), typed...))
	w := &Witness{
		Key:  fmt.Sprintf("%s+%x+%s", name, id[:4], base64.StdEncoding.EncodeToString(typed)),
		name: name, private: private, id: id[:4], origin: origin,
	}
	var known []note.Verifier
	for _, key := range keys {
		v, err := note.NewVerifier(key)
		if err != nil {
			t.Fatal(err)
		}
		known = append(known, v)
	}
	w.log = note.VerifierList(known...)
	mux := http.NewServeMux()
	mux.HandleFunc("POST /w/add-checkpoint", w.ServeHTTP)
	w.server = httptest.NewTLSServer(mux)
	t.Cleanup(w.server.Close)
	return w
}

// Target returns the address of the witness, for callers that may call loopback.
func (w *Witness) Target() safehttp.Target {
	roots := x509.NewCertPool()
	roots.AddCert(w.server.Certificate())
	return safehttp.Target{
		URL: secret.New(w.server.URL + "/w"), Roots: roots, AllowPrivate: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")},
	}
}

// CA returns the PEM certificate that callers must trust to reach the witness.
func (w *Witness) CA() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: w.server.Certificate().Raw})
}

// Seen returns the tree size that the witness has cosigned last.
func (w *Witness) Seen() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.seen.N
}

// Calls returns how often the witness was called.
func (w *Witness) Calls() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.calls
}

// Break makes another handler answer instead of the witness, until Break(nil).
func (w *Witness) Break(instead http.HandlerFunc) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.broken = instead
}

// ServeHTTP handles a request as a witness does, or as the handler of Break does.
func (w *Witness) ServeHTTP(out http.ResponseWriter, r *http.Request) {
	w.mu.Lock()
	broken := w.broken
	w.calls++
	w.mu.Unlock()
	if broken != nil {
		broken(out, r)
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		out.WriteHeader(http.StatusBadRequest)
		return
	}
	status, answer := w.addCheckpoint(string(body))
	if status == http.StatusConflict {
		out.Header().Set("Content-Type", "text/x.tlog.size")
	}
	out.WriteHeader(status)
	_, _ = io.WriteString(out, answer)
}

func (w *Witness) addCheckpoint(body string) (status int, answer string) {
	head, checkpoint, _ := strings.Cut(body, "\n\n")
	lines := strings.Split(head, "\n")
	var old int64
	if _, err := fmt.Sscanf(lines[0], "old %d", &old); err != nil || lines[0] != fmt.Sprintf("old %d", old) || len(lines) > 64 {
		return http.StatusBadRequest, ""
	}
	var proof tlog.TreeProof
	for _, line := range lines[1:] {
		hash, err := tlog.ParseHash(line)
		if err != nil {
			return http.StatusBadRequest, ""
		}
		proof = append(proof, hash)
	}
	if !strings.HasPrefix(checkpoint, w.origin+"\n") {
		return http.StatusNotFound, ""
	}
	opened, err := note.Open([]byte(checkpoint), w.log)
	if err != nil {
		return http.StatusForbidden, ""
	}
	var next tlog.Tree
	fields := strings.Split(opened.Text, "\n")
	if _, err := fmt.Sscan(fields[1], &next.N); err != nil {
		return http.StatusBadRequest, ""
	}
	if next.Hash, err = tlog.ParseHash(fields[2]); err != nil || old > next.N {
		return http.StatusBadRequest, ""
	}
	return w.advance(old, next, proof, opened.Text)
}

// advance checks and updates the seen tree in one critical section.
func (w *Witness) advance(old int64, next tlog.Tree, proof tlog.TreeProof, text string) (status int, answer string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case old != w.seen.N, old == next.N && next.Hash != w.seen.Hash:
		return http.StatusConflict, fmt.Sprintf("%d\n", w.seen.N)
	case old == 0 && len(proof) > 0, old > 0 && tlog.CheckTree(proof, next.N, next.Hash, old, w.seen.Hash) != nil:
		return http.StatusUnprocessableEntity, ""
	}
	w.seen = next
	made := time.Now().Unix()
	signature := binary.BigEndian.AppendUint64(append([]byte{}, w.id...), uint64(made))
	signature = append(signature, ed25519.Sign(w.private, fmt.Appendf(nil, "cosignature/v1\ntime %d\n%s", made, text))...)
	return http.StatusOK, fmt.Sprintf("— %s %s\n", w.name, base64.StdEncoding.EncodeToString(signature))
}

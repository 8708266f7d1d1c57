package witness

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/brevet-dev/brevet/internal/audit"
	"github.com/brevet-dev/brevet/internal/safehttp"
	"github.com/brevet-dev/brevet/internal/secret"
)

var (
	// ErrHistory means that the witness has cosigned a checkpoint that is not a prefix of this log. Either the log was rolled
	// back or changed, or somebody else signs with its key.
	ErrHistory = errors.New("the checkpoint that the witness cosigned before is not a prefix of the log")
	// ErrUnknown means that the witness does not know the log, or not the key that signed the checkpoint.
	ErrUnknown = errors.New("the witness does not know the log or its key")
	// ErrAnswer means that the response is not one that a witness gives.
	ErrAnswer = errors.New("the witness returned an unexpected response")
)

// Spec is one witness in the operator's configuration.
type Spec struct {
	// Name identifies the witness next to its cosignatures: up to 63 lower-case letters, digits, - and _.
	Name string
	// Key is the public key of the witness (c2sp.org/tlog-cosignature).
	Key string
	// Target is the endpoint of the witness; /add-checkpoint is appended to the path of its URL.
	safehttp.Target
}

// witness is a validated Spec with the known state of the witness. It is not safe for concurrent use.
type witness struct {
	name   string
	key    *audit.Cosigner
	client *safehttp.Client
	// has is the size that the witness is believed to have cosigned last. kept is the size of the last cosignature that was
	// stored.
	has, kept int64
}

func newWitness(s Spec) (*witness, error) {
	if !aName.MatchString(s.Name) {
		return nil, fmt.Errorf("witness: the name %q must be lower-case letters, digits, - and _, at most 63", s.Name)
	}
	key, err := audit.ParseCosigner(s.Key)
	if err == nil {
		s.URL = secret.New(strings.TrimSuffix(s.URL.Reveal(), "/") + "/add-checkpoint")
	}
	var client *safehttp.Client
	if err == nil {
		client, err = safehttp.New(s.Target)
	}
	if err != nil {
		return nil, fmt.Errorf("witness %s: %w", s.Name, err)
	}
	return &witness{name: s.Name, key: key, client: client}, nil
}

// carry gets the latest checkpoint cosigned, unless it already is, and reports whether it did.
func (w *witness) carry(ctx context.Context, log Log) (taken bool, err error) {
	defer func() {
		if err != nil {
			w.has = 0 // the next attempt starts from zero and learns the size
		}
	}()
	for range 3 { // while the witness keeps reporting another size
		size, signed, proof, err := log.Growth(ctx, w.has)
		switch {
		case errors.Is(err, audit.ErrNotYet), err == nil && size == w.kept:
			return false, nil
		case err != nil:
			return false, err
		case size < w.has:
			return false, fmt.Errorf("%w: the witness has cosigned %d entries, and the log has %d", ErrHistory, w.has, size)
		}
		// The size that the witness has, the consistency proof, and the checkpoint.
		body := fmt.Appendf(nil, "old %d\n", w.has)
		for _, hash := range proof {
			body = fmt.Appendf(body, "%s\n", hash)
		}
		body = append(append(body, '\n'), signed...)
		answer, err := w.client.Post(ctx, http.Header{"Content-Type": {"text/plain; charset=utf-8"}}, body)
		if err != nil {
			return false, err
		}
		if answer.Status == http.StatusConflict { // it may report the size that it has
			has, err := strconv.ParseInt(strings.TrimSuffix(string(answer.Body), "\n"), 10, 64)
			if err == nil && has >= 0 && has != w.has {
				w.has = has
				continue
			}
		}
		switch answer.Status {
		case http.StatusOK:
		case http.StatusConflict, http.StatusUnprocessableEntity: // for a tree of the same size with another root, either of them
			return false, fmt.Errorf("%w: status %d", ErrHistory, answer.Status)
		case http.StatusForbidden, http.StatusNotFound:
			return false, fmt.Errorf("%w: status %d", ErrUnknown, answer.Status)
		default:
			return false, fmt.Errorf("%w: status %d", ErrAnswer, answer.Status)
		}
		line, err := w.key.Cosignature([]byte(signed), answer.Body)
		if err == nil {
			err = log.Cosign(ctx, w.name, size, line)
		}
		if err != nil {
			return false, err
		}
		w.has, w.kept = size, size
		return true, nil
	}
	return false, fmt.Errorf("%w: it corrects the size too often", ErrAnswer)
}

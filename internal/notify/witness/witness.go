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
	"golang.org/x/mod/sumdb/tlog"
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

// mostCorrections is how many requests one attempt sends while the witness keeps reporting another size.
const mostCorrections = 3

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
	for range mostCorrections {
		size, signed, proof, err := log.Growth(ctx, w.has)
		switch {
		case errors.Is(err, audit.ErrNotYet), err == nil && size == w.kept:
			return false, nil
		case err != nil:
			return false, err
		case size < w.has:
			return false, fmt.Errorf("%w: the witness has cosigned %d entries, and the log has %d", ErrHistory, w.has, size)
		}
		answer, err := w.client.Post(ctx, http.Header{"Content-Type": {"text/plain; charset=utf-8"}}, request(w.has, proof, signed))
		if err != nil {
			return false, err
		}
		has, corrects := correction(answer)
		if corrects && has != w.has {
			w.has = has
			continue
		}
		if err := refusal(answer); err != nil {
			return false, err
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

// request returns the body of a call: the size that the witness has, the consistency proof, and the checkpoint.
func request(has int64, proof tlog.TreeProof, signed string) []byte {
	body := fmt.Appendf(nil, "old %d\n", has)
	for _, hash := range proof {
		body = fmt.Appendf(body, "%s\n", hash)
	}
	return append(append(body, '\n'), signed...)
}

// correction returns the size that the witness has, if the response reports it.
func correction(answer safehttp.Answer) (has int64, ok bool) {
	if answer.Status != http.StatusConflict {
		return 0, false
	}
	has, err := strconv.ParseInt(strings.TrimSuffix(string(answer.Body), "\n"), 10, 64)
	return has, err == nil && has >= 0
}

// refusal returns the reason that a witness did not cosign, or nil. If a tree of the same size has another root, some
// witnesses respond with 409 and others with 422.
func refusal(answer safehttp.Answer) error {
	switch answer.Status {
	case http.StatusOK:
		return nil
	case http.StatusConflict, http.StatusUnprocessableEntity:
		return fmt.Errorf("%w: status %d", ErrHistory, answer.Status)
	case http.StatusForbidden, http.StatusNotFound:
		return fmt.Errorf("%w: status %d", ErrUnknown, answer.Status)
	}
	return fmt.Errorf("%w: status %d", ErrAnswer, answer.Status)
}

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
	// ErrHistory is of a witness that has cosigned what is not the beginning of this log. Either it went back or was
	// changed, or somebody else signs with its key.
	ErrHistory = errors.New("what the witness has cosigned before is not the beginning of the log")
	// ErrUnknown is of a witness that does not know the log, or not the key that has signed.
	ErrUnknown = errors.New("the witness does not know the log, or not its key")
	// ErrAnswer is of an answer that tells nothing.
	ErrAnswer = errors.New("the answer is not one of a witness, or not a yes")
)

// mostCorrections is how often in a row a witness may say that it has seen another size than was thought.
const mostCorrections = 3

// Spec is one witness, as an operator configures it.
type Spec struct {
	// Name stands for it beside its cosignatures: up to 63 lower-case letters, digits, - and _.
	Name string
	// Key is its public key (c2sp.org/tlog-cosignature).
	Key string
	// Target is where it is; /add-checkpoint is appended to the path of the URL.
	safehttp.Target
}

// witness is a Spec that was checked, and what is known of the witness. It is not safe for concurrent use.
type witness struct {
	name   string
	key    *audit.Cosigner
	client *safehttp.Client
	// has is the size that it is thought to have cosigned last, and kept the size of the last cosignature that was kept.
	has, kept int64
}

func newWitness(s Spec) (*witness, error) {
	if !aName.MatchString(s.Name) {
		return nil, fmt.Errorf("witness: %q is not a name: lower-case letters, digits, - and _, at most 63", s.Name)
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

// carry has the last checkpoint cosigned, unless it was, and tells whether that was done.
func (w *witness) carry(ctx context.Context, log Log) (taken bool, err error) {
	defer func() {
		if err != nil {
			w.has = 0 // it is asked anew
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
			return false, fmt.Errorf("%w: that were %d entries, and here are %d", ErrHistory, w.has, size)
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
	return false, fmt.Errorf("%w: it corrects itself all the time", ErrAnswer)
}

// request is the body of a call: what the witness has, the proof that this is the beginning, and the checkpoint.
func request(has int64, proof tlog.TreeProof, signed string) []byte {
	body := fmt.Appendf(nil, "old %d\n", has)
	for _, hash := range proof {
		body = fmt.Appendf(body, "%s\n", hash)
	}
	return append(append(body, '\n'), signed...)
}

// correction is the size that the witness has, if it says that.
func correction(answer safehttp.Answer) (has int64, ok bool) {
	if answer.Status != http.StatusConflict {
		return 0, false
	}
	has, err := strconv.ParseInt(strings.TrimSuffix(string(answer.Body), "\n"), 10, 64)
	return has, err == nil && has >= 0
}

// refusal is why a witness does not cosign. Some say with 409, and others with 422, that a tree of the same size has
// another root.
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

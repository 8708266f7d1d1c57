package audit

import (
	"errors"
	"fmt"
	"strings"

	"golang.org/x/mod/sumdb/note"
)

// ParseKeys parses the public keys of a log, oldest first. The returned name is the log's current one, from the last key.
func ParseKeys(keys []string) (name string, _ note.Verifiers, err error) {
	var all []note.Verifier
	for _, key := range keys {
		v, err := note.NewVerifier(strings.TrimSpace(key))
		if err != nil {
			return "", nil, fmt.Errorf("%+q is not a public key of a log: use the output of brevet audit keys", key)
		}
		name, all = v.Name(), append(all, v)
	}
	if len(all) == 0 {
		return "", nil, errors.New("no public key of the log")
	}
	return name, note.VerifierList(all...), nil
}

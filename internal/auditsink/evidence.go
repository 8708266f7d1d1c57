package auditsink

import (
	"archive/zip"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/audit"
	"github.com/brevet-dev/brevet/internal/safetext"
)

const aboutEvidence = `Evidence of the task %q of %s
exported on %s from the log %s

receipt.json     all entries of the task, byte for byte, each with the proof that it is in the log
keys.txt         the public keys of the log, as the broker returned them: compare them with an independent copy
issuances.ndjson the state of each request, as the broker reports it: only the entries in receipt.json are proven
catalogues/      the scopes and policies that decided the requests, in one folder for each catalogue digest

To verify the entries offline, run

  brevet audit verify --receipt receipt.json --key-file keys.txt

This proves that these entries are in the log that the keys signed. It does not prove that the task has no other entries:
that requires the whole log.
`

// Evidence says of which task to collect the evidence.
type Evidence struct {
	SPIFFEID, Task string
	Now            time.Time
	// Omitted is called with the digest of each catalogue that the caller may not read, or that was not applied through the API.
	Omitted func(digest string)
}

// Collect returns the evidence of a task as a self-contained ZIP archive.
func (e Evidence) Collect(ctx context.Context, broker *client.Client) ([]byte, error) {
	receipt, err := broker.TaskReceipt(ctx, e.SPIFFEID, e.Task)
	if err != nil {
		return nil, err
	}
	proof, err := json.MarshalIndent(receipt, "", "  ")
	if err != nil {
		return nil, err
	}
	keys, err := broker.LogKeys(ctx)
	if err != nil {
		return nil, err
	}
	name, _, err := audit.ParseKeys(keys)
	if err != nil {
		return nil, err
	}
	var packed, states bytes.Buffer
	catalogues := map[string]bool{}
	for one, err := range broker.Issuances(ctx, client.Filter{SPIFFEID: e.SPIFFEID, Task: e.Task, Limit: 500}) {
		if err != nil {
			return nil, err
		}
		if err := json.NewEncoder(&states).Encode(one); err != nil {
			return nil, err
		}
		catalogues[one.Catalogue] = true
	}

	archive := zip.NewWriter(&packed)
	add := func(name, text string) {
		out, addErr := archive.Create(name)
		if addErr == nil {
			_, addErr = out.Write([]byte(text))
		}
		err = errors.Join(err, addErr)
	}
	add("README.txt", fmt.Sprintf(aboutEvidence, safetext.Text(e.Task), safetext.Text(e.SPIFFEID), e.Now.UTC().Format(time.RFC1123), name))
	add("receipt.json", string(proof)+"\n")
	add("keys.txt", strings.Join(append(keys, ""), "\n"))
	add("issuances.ndjson", states.String())
	for digest := range catalogues {
		files, readErr := broker.CatalogueFiles(ctx, digest)
		if errors.Is(readErr, client.ErrNotAllowed) || errors.Is(readErr, client.ErrNotFound) {
			e.Omitted(digest)
			continue
		}
		if readErr != nil {
			return nil, readErr
		}
		for _, f := range files {
			if !localName(f.Name) {
				return nil, fmt.Errorf("catalogue %s: the file name %+q is not safe to write", safetext.Text(digest), f.Name)
			}
			add("catalogues/"+strings.ReplaceAll(digest, ":", "-")+"/"+f.Name, f.Text)
		}
	}
	if err = errors.Join(err, archive.Close()); err != nil {
		return nil, fmt.Errorf("packing the evidence: %w", err)
	}
	return packed.Bytes(), nil
}

// localName reports whether a name stays inside its folder on every system where the archive may be unpacked.
func localName(name string) bool {
	return name != "" && !strings.ContainsAny(name, "\\:") && !strings.HasPrefix(name, "/") && !strings.Contains("/"+name+"/", "/../")
}

package main

import (
	"archive/zip"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/safetext"
)

// AuditEvidenceCmd is `brevet audit evidence`.
type AuditEvidenceCmd struct {
	OfficialFlags
	Task     string `arg:"" help:"Task whose evidence to export."`
	SPIFFEID string `help:"SPIFFE ID of the sandbox that owns the task." name:"spiffe-id" required:""`
	To       string `help:"ZIP file to write." type:"path" required:""`
}

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

// Run writes the evidence of one task to a self-contained file.
func (c *AuditEvidenceCmd) Run(ctx context.Context, con *console) error {
	return c.consult(ctx, con, func(broker *client.Client) error {
		files, err := c.collect(ctx, con, broker)
		if err != nil {
			return err
		}
		if err := writeZip(c.To, files); err != nil {
			return err
		}
		con.say("wrote the evidence to " + c.To + "; its README.txt explains how to verify it")
		return nil
	})
}

// evidence is one file of the evidence archive.
type evidence struct {
	name string
	text []byte
}

func (c *AuditEvidenceCmd) collect(ctx context.Context, con *console, broker *client.Client) ([]evidence, error) {
	receipt, err := broker.TaskReceipt(ctx, c.SPIFFEID, c.Task)
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
	name, _, err := logVerifiers(keys)
	if err != nil {
		return nil, err
	}
	about := fmt.Sprintf(aboutEvidence, safetext.Text(c.Task), safetext.Text(c.SPIFFEID), time.Now().UTC().Format(time.RFC1123), name)
	files := []evidence{
		{"README.txt", []byte(about)}, {"receipt.json", append(proof, '\n')}, {"keys.txt", []byte(strings.Join(append(keys, ""), "\n"))},
	}
	var states bytes.Buffer
	catalogues := map[string]bool{}
	for one, err := range broker.Issuances(ctx, client.Filter{SPIFFEID: c.SPIFFEID, Task: c.Task, Limit: 500}) {
		if err != nil {
			return nil, err
		}
		if err := json.NewEncoder(&states).Encode(one); err != nil {
			return nil, err
		}
		catalogues[one.Catalogue] = true
	}
	files = append(files, evidence{"issuances.ndjson", states.Bytes()})
	for digest := range catalogues {
		more, err := catalogueFiles(ctx, broker, digest)
		if errors.Is(err, client.ErrNotAllowed) || errors.Is(err, client.ErrNotFound) {
			con.say("the catalogue " + digest + " is omitted: you may not read it, or it was not applied through the API")
			continue
		}
		if err != nil {
			return nil, err
		}
		files = append(files, more...)
	}
	return files, nil
}

func catalogueFiles(ctx context.Context, broker *client.Client, digest string) ([]evidence, error) {
	files, err := broker.CatalogueFiles(ctx, digest)
	if err != nil {
		return nil, err
	}
	folder := "catalogues/" + strings.ReplaceAll(digest, ":", "-") + "/"
	var all []evidence
	for _, f := range files {
		if !localName(f.Name) {
			return nil, fmt.Errorf("catalogue %s: the file name %s is not safe to write", safetext.Text(digest), quote(safetext.Text(f.Name)))
		}
		all = append(all, evidence{folder + f.Name, []byte(f.Text)})
	}
	return all, nil
}

// localName reports whether a name stays inside its folder on every system where the archive may be unpacked.
func localName(name string) bool {
	return name != "" && !strings.ContainsAny(name, "\\:") && !strings.HasPrefix(name, "/") && !strings.Contains("/"+name+"/", "/../")
}

// writeZip packs the files in memory, so that a packing error leaves no file behind. It fails if path exists.
func writeZip(path string, files []evidence) error {
	var packed bytes.Buffer
	w := zip.NewWriter(&packed)
	for _, f := range files {
		out, err := w.Create(f.name)
		if err == nil {
			_, err = out.Write(f.text)
		}
		if err != nil {
			return fmt.Errorf("packing the evidence: %w", err)
		}
	}
	if err := w.Close(); err != nil {
		return fmt.Errorf("packing the evidence: %w", err)
	}
	out, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = out.Write(packed.Bytes())
	return errors.Join(err, out.Close())
}

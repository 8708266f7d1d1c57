package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/safetext"
	"github.com/brevet-dev/brevet/internal/secret"
	"github.com/brevet-dev/brevet/openapi"
)

// AuditWhoseCmd is `brevet audit whose`.
type AuditWhoseCmd struct {
	OfficialFlags
	Digest string `arg:"" optional:"" help:"SHA-256, in hex, of a token's claims, or of a password, another token or a private key. Without it, brevet reads the credential from --file or standard input and computes the digest locally."`
	File   string `help:"File with the credential." type:"path"`
}

var hexDigest = regexp.MustCompile(`^[0-9a-f]{64}$`)

// Run prints what was issued to whom. It fails if no record has the digest.
func (c *AuditWhoseCmd) Run(ctx context.Context, con *console) error {
	digest, err := c.digest(os.Stdin)
	if err != nil {
		return err
	}
	broker, done, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer done()
	page, err := broker.Page(ctx, client.Filter{Credential: digest})
	if err != nil {
		return explain(con, c.hint(err), "")
	}
	if len(page.Issuances) == 0 {
		return exitError{err: fmt.Errorf("no record that you may see has the digest %s", digest), code: 1}
	}
	for _, one := range page.Issuances {
		if err := printOwner(con, one); err != nil {
			return err
		}
	}
	return nil
}

func (c *AuditWhoseCmd) digest(in io.Reader) (string, error) {
	if c.Digest != "" {
		digest := strings.ToLower(strings.TrimPrefix(c.Digest, "sha256:"))
		if c.File != "" || !hexDigest.MatchString(digest) {
			return "", errors.New("the digest must be 64 hex digits and excludes --file; pass a credential on standard input or in a file, never as an argument")
		}
		return digest, nil
	}
	if c.File != "" {
		text, err := readSecretFile(c.File)
		return client.DigestOf(secret.New(text)), err
	}
	data, err := io.ReadAll(io.LimitReader(in, maxSecretFile+1))
	text := strings.TrimRight(string(data), "\r\n")
	switch {
	case err != nil:
		return "", fmt.Errorf("reading the credential: %w", err)
	case text == "" || len(data) > maxSecretFile:
		return "", errors.New("standard input has no credential: it is empty, or larger than 64 KiB")
	}
	return client.DigestOf(secret.New(text)), nil
}

func printOwner(con *console, one openapi.Issuance) error {
	if con.json {
		return con.encode(one)
	}
	table := tabwriter.NewWriter(con.out, 0, 4, 2, ' ', 0)
	for _, line := range [][2]string{
		{"sandbox", one.SpiffeID},
		{"task", one.Task},
		{"scope", one.Scope},
		{"resource", one.Resource},
		{"kind", one.Credential.Kind},
		{"name", one.Credential.Name},
		{"issued", one.Time.Local().Format(time.DateTime)},
		{"expires", one.ExpiresAt.Local().Format(time.DateTime)},
		{"status", string(one.Status)},
		{"ended by", one.EndedBy},
		{"reason", shorten(one.Reason, 200)},
		{"id", one.ID},
	} {
		if line[1] != "" {
			fmt.Fprintf(table, "%s\t%s\n", line[0], safetext.Text(line[1]))
		}
	}
	return table.Flush()
}

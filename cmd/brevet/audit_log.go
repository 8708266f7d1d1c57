package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/audit"
	"github.com/brevet-dev/brevet/internal/safetext"
	signednote "golang.org/x/mod/sumdb/note"
)

// AuditCheckpointCmd is `brevet audit checkpoint`.
type AuditCheckpointCmd struct {
	OfficialFlags
	Witnesses int `help:"Print the latest checkpoint that at least this many witnesses have cosigned."`
}

// Run prints the latest signed checkpoint unchanged, so that it can be stored elsewhere.
func (c *AuditCheckpointCmd) Run(ctx context.Context, con *console) error {
	return c.consult(ctx, con, func(broker *client.Client) error {
		signed, err := broker.CosignedCheckpoint(ctx, c.Witnesses)
		if err != nil {
			return err
		}
		if con.json {
			return con.encode(struct {
				Checkpoint string `json:"checkpoint"`
			}{signed})
		}
		_, err = fmt.Fprint(con.out, signed)
		return err
	})
}

// AuditKeysCmd is `brevet audit keys`.
type AuditKeysCmd struct{ OfficialFlags }

// Run prints the public keys of the log.
func (c *AuditKeysCmd) Run(ctx context.Context, con *console) error {
	return c.consult(ctx, con, func(broker *client.Client) error {
		keys, err := broker.LogKeys(ctx)
		if err != nil {
			return err
		}
		if con.json {
			return con.encode(struct {
				Keys []string `json:"keys"`
			}{keys})
		}
		con.say("compare these keys with an independent copy: a compromised broker could return others")
		_, err = fmt.Fprintln(con.out, strings.Join(keys, "\n"))
		return err
	})
}

// AuditReceiptCmd is `brevet audit receipt`.
type AuditReceiptCmd struct {
	OfficialFlags
	ID string `arg:"" help:"ID of the issuance."`
}

// Run prints the proof that an issuance is in the log. The output is always JSON, because it usually goes to a file.
func (c *AuditReceiptCmd) Run(ctx context.Context, con *console) error {
	return c.consult(ctx, con, func(broker *client.Client) error {
		receipt, err := broker.LogReceipt(ctx, c.ID)
		if err != nil {
			return err
		}
		out := json.NewEncoder(con.out)
		out.SetEscapeHTML(false)
		if !con.json {
			out.SetIndent("", "  ")
		}
		return out.Encode(receipt)
	})
}

// consult calls do with a client for an admin or auditor, and explains its error.
func (f OfficialFlags) consult(ctx context.Context, con *console, do func(*client.Client) error) error {
	broker, done, err := f.open(ctx)
	if err != nil {
		return err
	}
	defer done()
	if err := do(broker); err != nil {
		return explain(con, f.hint(err), "")
	}
	return nil
}

// verifyReceipt verifies a receipt. If the receipt is valid, verifyReceipt prints its entries, because they are what it
// proves.
func (c *AuditVerifyCmd) verifyReceipt(con *console) error {
	unsaid := func(err error) error {
		fmt.Fprintf(con.err, "brevet: %v\n", err)
		return exitError{err: err, code: exitUnsaid}
	}
	cfg, err := c.config()
	if err == nil && (cfg.Keys == nil || len(c.Checkpoint) > 0) {
		err = errors.New("--receipt: requires --key or --key-file with the log's public key from an independent source, and excludes --checkpoint")
	}
	if err != nil {
		return unsaid(err)
	}
	text, err := os.ReadFile(c.Receipt)
	if err != nil {
		return unsaid(err)
	}
	var receipt audit.Receipt
	if json.Unmarshal(text, &receipt) != nil {
		return unsaid(fmt.Errorf("--receipt: %s is not a receipt: use the output of brevet audit receipt", c.Receipt))
	}
	signed, err := receipt.Verify(cfg.Keys)
	if err != nil {
		fmt.Fprintf(con.err, "brevet: %v\n", err)
		return exitError{err: err, code: 1}
	}
	return printProven(con, receipt, signed)
}

func printProven(con *console, receipt audit.Receipt, signed audit.Checkpoint) error {
	if con.json {
		return con.encode(struct {
			Log     string               `json:"log"`
			Size    int64                `json:"size"`
			Entries []audit.ReceiptEntry `json:"entries"`
		}{signed.Origin, signed.N, receipt.Entries})
	}
	of := "issuance " + receipt.Issuance
	if receipt.Task != "" {
		of = "task " + receipt.Task + " of " + receipt.SPIFFEID
	}
	fmt.Fprintf(con.out, "Verified: %s of %s in the log %s at size %d.\n\n", plural(len(receipt.Entries), "entry", "entries"), safetext.Text(of),
		safetext.Text(signed.Origin), signed.N)
	for _, e := range receipt.Entries {
		if _, err := fmt.Fprintf(con.out, "%d  %s\n", e.Index, safetext.Text(e.Body)); err != nil {
			return err
		}
	}
	return nil
}

// logVerifiers parses the public keys of a log, oldest first. The returned name is the log's current one, from the last
// key.
func logVerifiers(keys []string) (name string, _ signednote.Verifiers, err error) {
	var all []signednote.Verifier
	for _, key := range keys {
		v, err := signednote.NewVerifier(strings.TrimSpace(key))
		if err != nil {
			return "", nil, fmt.Errorf("%q is not a public key of a log: use the output of brevet audit keys", safetext.Text(key))
		}
		name, all = v.Name(), append(all, v)
	}
	if len(all) == 0 {
		return "", nil, errors.New("no public key of the log")
	}
	return name, signednote.VerifierList(all...), nil
}

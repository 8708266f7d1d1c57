package main

import (
	"context"
	"errors"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/openapi"
)

// ReleaseCmd is `brevet release`.
type ReleaseCmd struct {
	CallerFlags
	ID string `arg:"" help:"ID of the issuance, as brevet request printed it."`
}

// Run releases one credential of the sandbox in which this command runs.
func (c *ReleaseCmd) Run(ctx context.Context, con *console) error {
	return order(ctx, con, c.CallerFlags, func(broker *client.Client) (openapi.Receipt, error) { return broker.Release(ctx, c.ID) })
}

// RevokeCmd is `brevet revoke`.
type RevokeCmd struct {
	OfficialFlags
	ID          string `help:"This issuance only." name:"id"`
	Task        string `help:"Credentials of this task."`
	SPIFFEID    string `help:"Credentials of this sandbox." name:"spiffe-id"`
	Prefix      string `help:"Credentials of sandboxes at or below this SPIFFE ID."`
	TrustDomain string `help:"Credentials of this trust domain."`
	Scope       string `help:"Credentials of this scope."`
	Catalogue   string `help:"Credentials that the catalogue with this digest allowed."`
	Reason      string `help:"Reason for the record, in one sentence." required:""`
}

// Run revokes the credentials that match all given flags.
func (c *RevokeCmd) Run(ctx context.Context, con *console) error {
	which := client.Selection{
		ID: c.ID, Task: c.Task, SPIFFEID: c.SPIFFEID, SPIFFEIDPrefix: c.Prefix, TrustDomain: c.TrustDomain,
		Scope: c.Scope, Catalogue: c.Catalogue,
	}
	if which == (client.Selection{}) {
		return errors.New("no credentials selected: set at least one of --id, --task, --spiffe-id, --prefix, --trust-domain, --scope and --catalogue; a credential must match all that you set")
	}
	return order(ctx, con, c.OfficialFlags, func(broker *client.Client) (openapi.Receipt, error) {
		return broker.Revoke(ctx, which, c.Reason)
	})
}

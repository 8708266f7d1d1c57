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
	ID string `arg:"" help:"The issuance, as brevet request named it."`
}

// Run ends one credential of the sandbox that this runs in.
func (c *ReleaseCmd) Run(ctx context.Context, con *console) error {
	return order(ctx, con, c.CallerFlags, func(broker *client.Client) (openapi.Receipt, error) { return broker.Release(ctx, c.ID) })
}

// RevokeCmd is `brevet revoke`.
type RevokeCmd struct {
	OfficialFlags
	ID          string `help:"This one issuance." name:"id"`
	Task        string `help:"Of this task."`
	SPIFFEID    string `help:"Of this sandbox." name:"spiffe-id"`
	Prefix      string `help:"Of sandboxes at or below this SPIFFE ID."`
	TrustDomain string `help:"Of this trust domain."`
	Scope       string `help:"Of this scope."`
	Catalogue   string `help:"That the catalogue with this digest allowed."`
	Reason      string `help:"Why, in a sentence, for whoever reads the record." required:""`
}

// Run ends what all the given flags select.
func (c *RevokeCmd) Run(ctx context.Context, con *console) error {
	which := client.Selection{
		ID: c.ID, Task: c.Task, SPIFFEID: c.SPIFFEID, SPIFFEIDPrefix: c.Prefix, TrustDomain: c.TrustDomain,
		Scope: c.Scope, Catalogue: c.Catalogue,
	}
	if which == (client.Selection{}) {
		return errors.New("say what to revoke: --id, --task, --spiffe-id, --prefix, --trust-domain, --scope or --catalogue; all that are given have to match")
	}
	return order(ctx, con, c.OfficialFlags, func(broker *client.Client) (openapi.Receipt, error) {
		return broker.Revoke(ctx, which, c.Reason)
	})
}

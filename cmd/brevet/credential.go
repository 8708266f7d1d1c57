package main

import (
	"context"
	"time"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/safetext"
)

// HelperFlags are the flags of commands that other programs run to get a credential.
type HelperFlags struct {
	CallerFlags
	Task   string        `help:"Task of the credential." required:"" env:"BREVET_TASK"`
	Scope  string        `help:"Scope to request, such as github.issues.read." required:""`
	Param  []string      `help:"A parameter: name=text, or name:=JSON for numbers and booleans." placeholder:"NAME=VALUE" sep:"none"`
	TTL    time.Duration `help:"Time to live of the credential. Default: that of the scope." name:"ttl"`
	Reason string        `help:"Reason for the record, in one sentence."`
}

// obtain requests a credential with these parameters, and waits for approval if the request needs it.
func (f HelperFlags) obtain(ctx context.Context, con *console, broker *client.Client, params []string) (*client.Token, error) {
	parsed, err := parseParams(params)
	if err != nil {
		return nil, err
	}
	news := &partNews{con: con, scope: safetext.Text(f.Scope)}
	defer news.settle()
	ask := client.Ask{Scope: f.Scope, Params: parsed, TTL: f.TTL, Task: f.Task, Reason: f.Reason}
	return broker.Obtain(ctx, ask, news.waits)
}

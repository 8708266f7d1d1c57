package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/login"
)

// OfficialFlags say which broker an admin or auditor calls, and whether as a workload or as the logged-in person.
type OfficialFlags struct {
	Server string `help:"URL of the broker." required:"" env:"BREVET_SERVER"`
	identityFlags
}

// serverFlags are the OfficialFlags of a command that can work without a server.
type serverFlags struct {
	Server string `help:"URL of the broker. Without it, the command works offline as far as possible." env:"BREVET_SERVER"`
	identityFlags
}

// identityFlags say how to verify the broker, and how to authenticate the caller.
type identityFlags struct {
	ServerID    string `help:"SPIFFE ID of the broker's SVID. Without it, the system's roots must verify the broker's certificate." env:"BREVET_SERVER_ID"`
	WorkloadAPI string `help:"Workload API socket to get the SVID from. Without it, the command acts as the logged-in person." name:"workload-api" env:"SPIFFE_ENDPOINT_SOCKET"`
	SVID        string `help:"SPIFFE ID or hint of the SVID to use, if the Workload API offers several." name:"svid" env:"BREVET_SVID"`
	JWT         bool   `help:"Authenticate the workload with a JWT-SVID instead of an X.509-SVID." name:"jwt"`
	Audience    string `help:"With --jwt: the broker's issuer. Default: the URL of the broker." env:"BREVET_AUDIENCE"`
	Person      bool   `help:"Act as the logged-in person even if there is a Workload API, which then only supplies the broker's authorities."`
	CAFile      string `help:"PEM file with the roots for the broker's certificate, instead of the system's." name:"ca-file" env:"BREVET_CA_FILE"`
}

// connector opens a client that authenticates a caller, and adds advice to the errors of failed calls.
type connector interface {
	open(ctx context.Context) (*client.Client, func(), error)
	hint(err error) error
}

func (f OfficialFlags) asPerson() bool { return f.Person || f.WorkloadAPI == "" }

func (f OfficialFlags) connector() connector {
	if f.asPerson() {
		return PersonFlags{Server: f.Server, ServerID: f.ServerID, CAFile: f.CAFile, WorkloadAPI: f.WorkloadAPI}
	}
	return CallerFlags{
		Server: f.Server, ServerID: f.ServerID, CAFile: f.CAFile, WorkloadAPI: f.WorkloadAPI, SVID: f.SVID, JWT: f.JWT, Audience: f.Audience,
	}
}

// open returns a client and a function that closes it.
func (f OfficialFlags) open(ctx context.Context) (*client.Client, func(), error) {
	if f.JWT && f.asPerson() {
		return nil, nil, errors.New("--jwt: requires --workload-api, and excludes --person")
	}
	c, done, err := f.connector().open(ctx)
	if errors.Is(err, login.ErrEnded) && !f.Person {
		err = fmt.Errorf("%w, or set --workload-api or SPIFFE_ENDPOINT_SOCKET to act as a workload", err)
	}
	return c, done, err
}

func (f OfficialFlags) hint(err error) error { return f.connector().hint(err) }

// call opens a client that authenticates the caller, calls do with it, and explains its error.
func call(ctx context.Context, con *console, as connector, do func(*client.Client) error) error {
	broker, done, err := as.open(ctx)
	if err != nil {
		return err
	}
	defer done()
	if err := do(broker); err != nil {
		return explain(con, as.hint(err))
	}
	return nil
}

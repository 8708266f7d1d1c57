package main

import (
	"context"
	"errors"

	"github.com/brevet-dev/brevet/client"
)

// AdminFlags say which broker to call, and as whom: a workload or a person can be an admin or auditor.
type AdminFlags struct {
	Server      string `help:"URL of the broker." env:"BREVET_SERVER"`
	ServerID    string `help:"SPIFFE ID that the broker must prove. Without it, its certificate is checked against the web's authorities." env:"BREVET_SERVER_ID"`
	WorkloadAPI string `help:"Workload API socket to get the SVID from, or with --person the broker's authorities." name:"workload-api" env:"SPIFFE_ENDPOINT_SOCKET"`
	JWT         bool   `help:"Prove the identity with a JWT-SVID instead of an X.509-SVID." name:"jwt"`
	Audience    string `help:"With --jwt: the broker's issuer. Default: the URL of the broker." env:"BREVET_AUDIENCE"`
	Person      bool   `help:"Call as whoever has logged in with brevet login, instead of as this workload."`
	CAFile      string `help:"With --person: PEM file with the authorities that may vouch for the broker, instead of the web's." name:"ca-file" env:"BREVET_CA_FILE"`
}

func (f AdminFlags) workload() CallerFlags {
	return CallerFlags{Server: f.Server, ServerID: f.ServerID, WorkloadAPI: f.WorkloadAPI, JWT: f.JWT, Audience: f.Audience}
}

func (f AdminFlags) person() PersonFlags {
	return PersonFlags{Server: f.Server, ServerID: f.ServerID, CAFile: f.CAFile, WorkloadAPI: f.WorkloadAPI}
}

// open returns a client and what ends it.
func (f AdminFlags) open(ctx context.Context) (*client.Client, func(), error) {
	switch {
	case f.Server == "":
		return nil, nil, errors.New("which broker? Say it with --server or BREVET_SERVER")
	case f.Person:
		return f.person().open(ctx)
	case f.WorkloadAPI == "":
		return nil, nil, errors.New("who calls? Say it with --workload-api or SPIFFE_ENDPOINT_SOCKET, or --person for whoever is logged in")
	}
	return f.workload().open(ctx)
}

// hint says what to try when the broker is not known, or does not know who calls.
func (f AdminFlags) hint(err error) error {
	if f.Person {
		return f.person().hint(err)
	}
	return f.workload().hint(err)
}

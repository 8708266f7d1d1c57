package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/login"
	"github.com/brevet-dev/brevet/internal/safetext"
)

// OfficialFlags say which broker an admin or auditor calls, and whether as a workload or as the logged-in person. One rule holds
// for all such commands: they act as the person if somebody is logged in, and otherwise as the workload. --person, --workload and
// --jwt choose.
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
	WorkloadAPI string `help:"Workload API socket to get the SVID from." name:"workload-api" env:"SPIFFE_ENDPOINT_SOCKET"`
	SVID        string `help:"SPIFFE ID or hint of the SVID to use, if the Workload API offers several." name:"svid" env:"BREVET_SVID"`
	JWT         bool   `help:"Act as the workload, with a JWT-SVID instead of an X.509-SVID." name:"jwt"`
	Audience    string `help:"With --jwt: the broker's issuer. Default: the URL of the broker." env:"BREVET_AUDIENCE"`
	Person      bool   `help:"Act as the logged-in person, as all such commands do if somebody is logged in. A Workload API then only supplies the broker's authorities."`
	Workload    bool   `help:"Act as the workload of the Workload API, even if a person is logged in. --person overrides it." env:"BREVET_AS_WORKLOAD"`
	CAFile      string `help:"PEM file with the roots for the broker's certificate, instead of the system's." name:"ca-file" env:"BREVET_CA_FILE"`

	quiet bool // the command itself says who acts
}

// connector opens a client that authenticates a caller, and adds advice to the errors of failed calls.
type connector interface {
	open(ctx context.Context) (*client.Client, func(), error)
	hint(err error) error
	// identity describes the caller, and how to act as another one, if that is possible.
	identity(ctx context.Context) (acting, instead string)
}

func (f identityFlags) asPerson() bool {
	switch {
	case f.Person, f.WorkloadAPI == "":
		return true
	case f.Workload, f.JWT:
		return false
	default:
		return loggedIn()
	}
}

func (f OfficialFlags) person() PersonFlags {
	return PersonFlags{Server: f.Server, ServerID: f.ServerID, CAFile: f.CAFile, WorkloadAPI: f.WorkloadAPI}
}

func (f OfficialFlags) workload() CallerFlags {
	return CallerFlags{
		Server: f.Server, ServerID: f.ServerID, CAFile: f.CAFile, WorkloadAPI: f.WorkloadAPI, SVID: f.SVID, JWT: f.JWT, Audience: f.Audience,
	}
}

func (f OfficialFlags) connector() connector {
	if f.asPerson() {
		return f.person()
	}
	return f.workload()
}

// open returns a client and a function that closes it.
func (f OfficialFlags) open(ctx context.Context) (*client.Client, func(), error) {
	switch {
	case f.JWT && f.asPerson():
		return nil, nil, errors.New("--jwt: requires --workload-api, and excludes --person")
	case f.Workload && !f.Person && f.WorkloadAPI == "":
		return nil, nil, errors.New("--workload: requires --workload-api or SPIFFE_ENDPOINT_SOCKET")
	}
	c, done, err := f.connector().open(ctx)
	if err == nil {
		return c, done, nil
	}
	_, instead := f.identity(ctx)
	switch {
	case instead != "":
		err = fmt.Errorf("%w\nYou can also %s", err, instead)
	case errors.Is(err, login.ErrEnded) && !f.Person:
		err = fmt.Errorf("%w, or set --workload-api or SPIFFE_ENDPOINT_SOCKET to act as a workload", err)
	}
	return c, done, err
}

func (f OfficialFlags) hint(err error) error { return f.connector().hint(err) }

// identity also tells which flag makes the command act as the other of the person and the workload.
func (f OfficialFlags) identity(ctx context.Context) (acting, instead string) {
	acting, _ = f.connector().identity(ctx)
	switch {
	case !f.asPerson() && loggedIn():
		instead = "add --person to act as " + f.person().who() + ", who is logged in"
	case f.asPerson() && f.WorkloadAPI != "":
		if workload, _ := f.workload().identity(ctx); workload != "" {
			instead = "add --workload to act as " + workload
		}
	}
	return acting, instead
}

// announce says which identity a command uses if the user has not chosen between two.
func (f OfficialFlags) announce(con *console) {
	if f.quiet || con.json || f.Person || !f.asPerson() || f.WorkloadAPI == "" {
		return
	}
	con.say("acting as " + safetext.Text(f.person().who()) + ", who is logged in; --workload acts as the workload")
}

// call opens a client that authenticates the caller, calls do with it, and explains its error.
func call(ctx context.Context, con *console, as connector, do func(*client.Client) error) error {
	if official, ok := as.(OfficialFlags); ok {
		official.announce(con)
	}
	broker, done, err := as.open(ctx)
	if err != nil {
		return err
	}
	defer done()
	if err := do(broker); err != nil {
		return refused(ctx, con, as, err)
	}
	return nil
}

// refused explains the error of a call. If the broker did not accept the caller, or let the caller see nothing, it names the
// identity that acted and the one that could.
func refused(ctx context.Context, con *console, as connector, err error) error {
	err = as.hint(err)
	if problem, ok := errors.AsType[*client.Problem](err); ok {
		switch problem.Status {
		case http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound:
			acting, instead := as.identity(ctx)
			err = actedError{err, acting, instead}
		}
	}
	return explain(con, err)
}

// actedError is the error of a call with the identity that made it, and how to act as another one.
type actedError struct {
	error
	acting, instead string
}

func (e actedError) Unwrap() error { return e.error }

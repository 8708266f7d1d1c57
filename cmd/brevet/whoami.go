package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/brevet-dev/brevet/internal/safetext"
	"github.com/brevet-dev/brevet/openapi"
)

// WhoamiCmd is `brevet whoami`.
type WhoamiCmd struct{ serverFlags }

// Run prints what the provider said at the last login or renewal. With a broker, it prints how the broker identifies the
// caller: as the workload if there is a Workload API, and otherwise as the logged-in person.
func (c *WhoamiCmd) Run(ctx context.Context, con *console) error {
	if c.Server == "" {
		l, err := currentLogin()
		if err != nil {
			return err
		}
		return l.print(con)
	}
	flags := OfficialFlags(c.serverFlags)
	broker, done, err := flags.open(ctx)
	if err != nil {
		return err
	}
	defer done()
	var l login
	if flags.asPerson() {
		if l, err = currentLogin(); err != nil {
			return err
		}
	}
	me, err := broker.WhoAmI(ctx)
	if err != nil {
		if flags.asPerson() && !con.json { // the broker may not accept this login
			_ = l.print(con)
		}
		return explain(con, flags.hint(err), "")
	}
	return printCaller(con, me, l)
}

func currentLogin() (login, error) {
	l, err := readLogin()
	if err == nil && !l.renewable() && !time.Now().Before(l.Expires) {
		return l, errLoginEnded
	}
	return l, err
}

// printCaller prints the caller and what the broker says about it. l is empty for a workload.
func printCaller(con *console, me openapi.Caller, l login) error {
	person := me.Kind == openapi.CallerPerson
	switch {
	case con.json && person:
		facts := l.facts()
		facts["kind"], facts["roles"] = me.Kind, me.Roles
		return con.encode(facts)
	case con.json:
		return con.encode(me)
	case person:
		if err := l.print(con); err != nil {
			return err
		}
	default:
		if _, err := fmt.Fprintf(con.out, "%-8s %s\n", "id", safetext.Text(me.ID)); err != nil {
			return err
		}
	}
	label := "roles"
	for _, role := range me.Roles {
		if _, err := fmt.Fprintf(con.out, "%-8s %s\n", label, safetext.Text(roleLine(role))); err != nil {
			return err
		}
		label = ""
	}
	if len(me.Roles) > 0 {
		return nil
	}
	_, err := fmt.Fprintf(con.out, "%-8s -\n", label)
	return err
}

func roleLine(r openapi.CallerRole) string {
	line := string(r.Role)
	if r.Role == openapi.RoleResourceServer {
		return line + " for " + strings.Join(r.Audiences, ", ")
	}
	if !r.BootstrapUntil.IsZero() {
		line += " (bootstrap until " + r.BootstrapUntil.Local().Format(time.DateTime) + ")"
	}
	return line + " in " + strings.Join(r.Within, ", ")
}

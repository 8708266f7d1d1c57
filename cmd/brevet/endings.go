package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"time"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/openapi"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

const (
	reportTask = "demo-2"
	// deadWithin bounds how long a login may keep working after its task has ended.
	deadWithin = time.Second
)

// login shows a database login that works while its task runs.
func (s *story) login(ctx context.Context, c *chapter) error {
	ask := client.Ask{Scope: "reports.orders.read", Task: reportTask, Reason: "weekly report"}
	c.fact("requests", "%s for the task %s", ask.Scope, reportTask)
	answer, err := s.cast.research.Request(ctx, ask)
	if err != nil {
		return err
	}
	if answer.Token == nil {
		return errors.New("got no credential")
	}
	token := answer.Token
	c.fact("gets", "the database user %s and its password, for %s", token.Name, spell(token.TTL))
	orders, err := s.orders(ctx, token)
	if err != nil {
		return fmt.Errorf("logging in: %w", err)
	}
	c.fact("logs in", "to the database, and reads %s", plural(orders, "order", "orders"))
	record, err := s.cast.auditor.Issuance(ctx, token.ID)
	if err != nil {
		return err
	}
	if record.Credential.Name != token.Name {
		return fmt.Errorf("the record names the user %q, the database %q", record.Credential.Name, token.Name)
	}
	c.fact("recorded", "the user's name, which connects the database's log to the sandbox")
	return s.endReport(ctx, c, token)
}

// endReport ends the task and shows that its login no longer works.
func (s *story) endReport(ctx context.Context, c *chapter, token *client.Token) error {
	began := time.Now()
	receipt, err := s.cast.research.EndTask(ctx, reportTask, client.TaskEnd{})
	if err != nil {
		return fmt.Errorf("ending the task: %w", err)
	}
	for _, e := range receipt.Ended {
		c.fact("task ends", "the receipt shows: %s %s", e.Kind, e.Status)
	}
	if len(receipt.Ended) != 1 || receipt.Ended[0].Status != openapi.StatusRevoked {
		return fmt.Errorf("got the receipt %+v, want one credential revoked", receipt)
	}
	_, err = s.orders(ctx, token)
	took := time.Since(began)
	var refused *pgconn.PgError
	switch {
	case err == nil:
		return errors.New("the login works after its task has ended")
	case !errors.As(err, &refused):
		return fmt.Errorf("logging in again: %w", err)
	case took > deadWithin:
		return fmt.Errorf("the login was refused %s after the end of its task, want at most %s", took, deadWithin)
	}
	c.fact("logs in", "refused by the database, %s after the request to end the task", took.Round(time.Millisecond))
	if _, err = s.cast.research.Request(ctx, client.Ask{Scope: "reports.orders.read", Task: reportTask}); !errors.Is(err, client.ErrTaskEnded) {
		return fmt.Errorf("got %w for a task that has ended, want a denial", err)
	}
	c.fact("repeats", "denied: nothing is issued for a task that has ended")
	return nil
}

// orders logs in to the target database with a credential, and counts the orders.
func (s *story) orders(ctx context.Context, token *client.Token) (int, error) {
	target, err := url.Parse(s.cast.local.Postgres.TargetURL())
	if err != nil {
		return 0, err
	}
	target.User = url.UserPassword(token.Field("username").Reveal(), token.Field("password").Reveal())
	conn, err := pgx.Connect(ctx, target.String())
	if err != nil {
		return 0, err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	var n int
	return n, conn.QueryRow(ctx, `SELECT count(*) FROM orders`).Scan(&n)
}

// quarantined shows how an admin stops a sandbox.
func (s *story) quarantined(ctx context.Context, c *chapter) error {
	agent := "spiffe://" + localDomain + localWorkloads["research"]
	receipt, err := s.cast.admin.Quarantine(ctx, agent, "unusual requests")
	if err != nil {
		return err
	}
	c.fact("admin", "quarantines %s, which ends %s", agent, plural(len(receipt.Ended), "credential", "credentials"))
	if _, err := s.ask(ctx, c, demoAsk("github.issues.read", 0)); !errors.Is(err, client.ErrQuarantined) {
		return fmt.Errorf("got %w in quarantine, want a denial", err)
	}
	c.fact("gets", "nothing, from any replica")
	if err := s.cast.admin.Unquarantine(ctx, agent, "false alarm"); err != nil {
		return err
	}
	if _, err := s.token(ctx, c, demoAsk("github.issues.read", 0)); err != nil {
		return fmt.Errorf("after the quarantine: %w", err)
	}
	c.fact("gets", "a token again after the admin has lifted the quarantine")
	return nil
}

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/openapi"
)

// RequestCmd is `brevet request`.
type RequestCmd struct {
	CallerFlags
	Scope  string        `arg:"" help:"Scope to ask for, such as github.issues.read."`
	Params []string      `arg:"" optional:"" help:"Its parameters: name=text, or name:=JSON for numbers and booleans."`
	Task   string        `help:"The task that the credential belongs to." required:"" env:"BREVET_TASK"`
	TTL    time.Duration `help:"How long the credential should live. Default: the scope's own."`
	Reason string        `help:"Why, in a sentence, for whoever reads the record."`
	Key    string        `help:"Idempotency key: a repeated request with it is answered once." name:"idempotency-key"`
}

// Run asks, and prints the credential alone on standard output, so that a script can take it.
func (c *RequestCmd) Run(ctx context.Context, con *console) error {
	params, err := parseParams(c.Params)
	if err != nil {
		return err
	}
	broker, done, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer done()
	answer, err := broker.Request(ctx, client.Ask{
		Scope: c.Scope, Params: params, TTL: c.TTL, Task: c.Task, Reason: c.Reason, IdempotencyKey: c.Key,
	})
	switch {
	case err != nil:
		return explain(con, c.hint(err), c.Task)
	case answer.Pending != nil:
		return printPending(con, answer.Pending)
	default:
		return printToken(con, answer.Token)
	}
}

func printToken(con *console, token *client.Token) error {
	if con.json {
		return con.encode(map[string]any{
			"id": token.ID, "token": token.Secret.Reveal(), "token_type": token.Type, "expires_at": token.Expires,
			"scope": token.Scope, "resource": token.Resource, "task": token.Task, "ttl": int(token.TTL.Seconds()),
			"clamped": token.Clamped, "policies": token.Policies, "catalogue": token.Catalogue,
		})
	}
	for _, clamp := range token.Clamped {
		fmt.Fprintf(con.err, "shortened from %s to %s by %s\n", seconds(clamp.From), seconds(clamp.To), clamp.Bound)
	}
	fmt.Fprintf(con.err, "%s on %s until %s, issuance %s\n",
		token.Scope, token.Resource, token.Expires.Local().Format(time.TimeOnly), token.ID)
	_, err := fmt.Fprintln(con.out, token.Secret.Reveal())
	return err
}

func printPending(con *console, pending *client.Pending) error {
	err := exitError{err: fmt.Errorf("request %s waits for a person", pending.ID), code: exitPending}
	if con.json {
		if encodeErr := con.encode(map[string]any{
			"id": pending.ID, "status": openapi.StatusPending, "group": pending.Group, "quorum": pending.Quorum,
			"expires_at": pending.Expires,
		}); encodeErr != nil {
			return encodeErr
		}
		return err
	}
	fmt.Fprintf(con.err, "A person has to agree first: %d of %s, until %s.\n  request    %s\n",
		pending.Quorum, pending.Group, pending.Expires.Local().Format(time.TimeOnly), pending.ID)
	return err
}

// parseParams reads name=text and name:=JSON.
func parseParams(args []string) (map[string]any, error) {
	params := make(map[string]any, len(args))
	for _, arg := range args {
		name, text, ok := strings.Cut(arg, "=")
		if !ok || name == "" || name == ":" {
			return nil, fmt.Errorf("parameter %q is neither name=text nor name:=JSON", arg)
		}
		var value any = text
		if typed, isJSON := strings.CutSuffix(name, ":"); isJSON {
			name = typed
			// Numbers stay as they were written: none is to be rounded on its way to the decision.
			decoder := json.NewDecoder(strings.NewReader(text))
			decoder.UseNumber()
			if err := decoder.Decode(&value); err != nil || decoder.More() {
				return nil, fmt.Errorf("parameter %s: %q is not one JSON value", name, text)
			}
		}
		if _, twice := params[name]; twice {
			return nil, fmt.Errorf("parameter %s is given twice", name)
		}
		params[name] = value
	}
	return params, nil
}

// commandLine writes an ask as arguments of this command, for a person to paste into a shell.
func commandLine(ask openapi.NarrowestAsk, task string) string {
	words := []string{"brevet", "request", quote(ask.Scope)}
	for _, name := range slices.Sorted(maps.Keys(ask.Params)) {
		if text, ok := ask.Params[name].(string); ok {
			words = append(words, quote(name+"="+text))
			continue
		}
		value, err := json.Marshal(ask.Params[name])
		if err != nil {
			continue // what came as JSON goes as JSON
		}
		words = append(words, quote(name+":="+string(value)))
	}
	if ask.TTL > 0 {
		words = append(words, "--ttl "+seconds(ask.TTL).String())
	}
	return strings.Join(append(words, "--task "+quote(task)), " ")
}

// plain is what no shell gives a meaning to, in the middle of a word or at its beginning.
var plain = regexp.MustCompile(`^[A-Za-z0-9_./:@%+,=-]+$`)

// quote makes one word for a shell of text from elsewhere.
func quote(text string) string {
	if plain.MatchString(text) {
		return text
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}

func seconds(n int64) time.Duration { return time.Duration(n) * time.Second }

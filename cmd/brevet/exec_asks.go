package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/alecthomas/kong"
	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/safetext"
)

// inOrder is a repeatable flag. Its position among other flags says what it applies to.
type inOrder []placed

// placed is one value of a flag, and the number of words after it on the command line.
type placed struct {
	after int
	text  string
}

// Decode reads one value.
func (f *inOrder) Decode(ctx *kong.DecodeContext) error {
	after := ctx.Scan.Len()
	var text string
	if err := ctx.Scan.PopValueInto("value", &text); err != nil {
		return err
	}
	*f = append(*f, placed{after, text})
	return nil
}

// newTask generates the name of a task. It begins with the command that generated it, to inform readers of the record.
func newTask(by string) string { return by + "-" + strings.ToLower(rand.Text()) }

// longestAsk is the longest TTL that can be requested. The scope's maximum shortens it.
const longestAsk = 365 * 24 * time.Hour

// part is one credential of the program: what is requested, and where the credential goes.
type part struct {
	ask    client.Ask
	params []string
	places []place

	mu    sync.Mutex
	ended bool // nothing is delivered any more

	hold *client.Hold  // renews the credential; nil before the first one, or if it cannot be renewed
	once *client.Token // the credential that is not renewed
}

// parts reads the flags in command-line order.
func (c *ExecCmd) parts(folder *privateFolder) ([]*part, error) {
	type word struct {
		placed
		flag string
	}
	var words []word
	for flag, values := range map[string]inOrder{
		"scope": c.Scope, "param": c.Param, "ttl": c.TTL, "env": c.Env, "file": c.File, "socket": c.Socket, "for": c.For,
	} {
		for _, value := range values {
			words = append(words, word{value, flag})
		}
	}
	signer, err := c.signer()
	if err != nil {
		return nil, err
	}
	slices.SortFunc(words, func(a, b word) int { return cmp.Compare(b.after, a.after) })
	var parts []*part
	for _, w := range words {
		if w.flag == "scope" {
			parts = append(parts, &part{ask: client.Ask{Scope: w.text, Signer: signer}})
			continue
		}
		if len(parts) == 0 {
			return nil, fmt.Errorf("--%s %s must follow its --scope", w.flag, w.text)
		}
		if err := parts[len(parts)-1].add(w.flag, w.text, folder); err != nil {
			return nil, fmt.Errorf("--%s: %w", w.flag, err)
		}
	}
	for _, p := range parts {
		if len(p.places) == 0 && !c.Egress {
			return nil, fmt.Errorf("--scope %s: requires --env, --file, --socket or --for", p.ask.Scope)
		}
		if p.inEnv() && slices.ContainsFunc(p.places, func(to place) bool { return !isEnv(to) }) {
			return nil, fmt.Errorf("--scope %s: an environment variable cannot be renewed: use a separate --scope for --env", p.ask.Scope)
		}
		if p.ask.Params, err = parseParams(p.params); err != nil {
			return nil, err
		}
	}
	return parts, nil
}

func (p *part) add(flag, text string, folder *privateFolder) (err error) {
	var to place
	switch flag {
	case "param":
		p.params = append(p.params, text)
		return nil
	case "ttl":
		p.ask.TTL, err = time.ParseDuration(text)
		return err
	case "env":
		to, err = newEnvPlace(text)
	case "file":
		to, err = newFilePlace(text, folder)
	case "socket":
		to, err = newSocketPlace(text, folder)
	default:
		to, err = p.newTemplate(text, folder)
	}
	if err != nil {
		return err
	}
	p.places = append(p.places, to)
	return nil
}

// inEnv reports whether the credential goes into the environment, where it cannot be renewed while the program runs.
func (p *part) inEnv() bool { return slices.ContainsFunc(p.places, isEnv) }

func isEnv(to place) bool {
	_, env := to.(*envPlace)
	return env
}

// obtain gets the credential, keeps it renewed unless it goes into the environment, and delivers it to its places.
func (p *part) obtain(ctx context.Context, con *console, broker *client.Client) error {
	news := &partNews{con: con, scope: safetext.Text(p.ask.Scope)}
	defer news.settle()
	if p.inEnv() {
		token, err := p.longest(ctx, broker, news.waits)
		if err != nil {
			return err
		}
		p.once = token
		news.say("expires at %s; the environment variable cannot be renewed", token.Expires.Local().Format(time.TimeOnly))
		return p.put(token)
	}
	var started bool
	var failed error // error of the first delivery, without which the program cannot start
	hold, err := broker.Hold(ctx, client.HoldConfig{
		Ask: p.ask, Waiting: news.waits,
		Obtained: func(token *client.Token) {
			err := p.put(token)
			if started && err != nil {
				news.say("was renewed, but could not be delivered to the program: %v", err)
			} else if !started {
				started, failed = true, err
			}
		},
		Failed: func(err error) { news.say("was not renewed: %v", err) },
	})
	if err != nil {
		return err
	}
	p.hold = hold
	return failed
}

// longest requests the longest TTL that the scope, or else policy, allows, unless a TTL was given.
func (p *part) longest(ctx context.Context, broker *client.Client, waiting func(client.Pending)) (*client.Token, error) {
	if p.ask.TTL != 0 {
		return broker.Obtain(ctx, p.ask, waiting)
	}
	ask := p.ask
	ask.TTL = longestAsk
	token, err := broker.Obtain(ctx, ask, waiting)
	var problem *client.Problem
	if !errors.As(err, &problem) || !errors.Is(err, client.ErrDenied) {
		return token, err
	}
	// The nearest permitted request may be this one with a shorter TTL.
	if near := problem.Narrowest; near.Scope == ask.Scope && near.TTL > 0 && sameParams(near.Params, ask.Params) {
		ask.TTL = seconds(near.TTL)
		return broker.Obtain(ctx, ask, waiting)
	}
	return nil, err
}

func sameParams(a, b map[string]any) bool {
	if len(a) == 0 && len(b) == 0 {
		return true
	}
	first, err := json.Marshal(a)
	if err != nil {
		return false
	}
	second, err := json.Marshal(b)
	return err == nil && bytes.Equal(first, second)
}

func (p *part) put(token *client.Token) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended {
		return nil
	}
	var errs []error
	for _, to := range p.places {
		errs = append(errs, to.put(token))
	}
	return errors.Join(errs...)
}

// remove removes the credential from all places, and stops later deliveries.
func (p *part) remove() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended = true
	for _, to := range p.places {
		to.remove()
	}
}

// release ends the credential if there is one.
func (p *part) release(ctx context.Context, broker *client.Client) error {
	if p.hold != nil {
		return p.hold.Close(ctx)
	}
	if p.once == nil {
		return nil
	}
	_, err := broker.Release(ctx, p.once.ID)
	return err
}

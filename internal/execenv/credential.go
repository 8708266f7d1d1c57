// Package execenv prepares what `brevet exec` gives to a program. It requests credentials, delivers them to the places where
// the program looks for them, renews them while the program runs, and revokes them when it ends. It also writes credentials in
// the formats of git and kubectl.
//
// It must never pass a credential in an argument, or deliver one to a place that another user can read.
package execenv

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/brevet-dev/brevet/client"
	"github.com/brevet-dev/brevet/internal/private"
)

const (
	// EndWithin bounds the release of all credentials after the program has ended.
	EndWithin = 15 * time.Second
	// LongestTTL is the longest TTL that can be requested. The scope's maximum shortens it.
	LongestTTL = 365 * 24 * time.Hour
)

// Environment is what a program gets.
type Environment struct {
	Broker      *client.Client
	Task        string
	MadeUp      bool // the task was generated for the program, and ends with it
	Used        bool // the task may have credentials
	Credentials []*Credential
}

// Obtain gets a credential, keeps it renewed unless it goes into the environment, and delivers it to its places. It calls say
// for every event of the credential, including later ones, and waiting while the request is pending.
func (e *Environment) Obtain(ctx context.Context, c *Credential, say func(string), waiting func(client.Pending)) (err error) {
	defer func() {
		// A refused request issued nothing. A call without a response may have issued a credential.
		if _, refused := errors.AsType[*client.Problem](err); !refused {
			e.Used = true
		}
	}()
	if err := e.settle(ctx, c); err != nil {
		return err
	}
	if c.inEnv(c.kind) > 0 {
		if c.once, err = e.longest(ctx, c.Ask, waiting); err != nil {
			return err
		}
		say("expires at " + c.once.Expires.Local().Format(time.TimeOnly) + "; the environment variable cannot be renewed")
		return c.put(c.once)
	}
	var started bool
	var failed error // error of the first delivery, without which the program cannot start
	c.hold, err = e.Broker.Hold(ctx, client.HoldConfig{
		Ask: c.Ask, Waiting: waiting,
		Obtained: func(token *client.Token) {
			err := c.put(token)
			if started && err != nil {
				say(fmt.Sprintf("was renewed, but could not be delivered to the program: %v", err))
			} else if !started {
				started, failed = true, err
			}
		},
		Failed: func(err error) { say(fmt.Sprintf("was not renewed: %v", err)) },
	})
	return errors.Join(err, failed)
}

// settle finds out the kind of a credential if it depends on that whether the credential is in a variable. If the caller has no
// such scope, the kind stays unknown, and the request is denied.
func (e *Environment) settle(ctx context.Context, c *Credential) error {
	if !slices.ContainsFunc(c.places, func(to *place) bool { return to.env == unlessJWT }) {
		return nil
	}
	offered, err := e.Broker.Scopes(ctx)
	if err != nil {
		return fmt.Errorf("reading the scopes: %w", err)
	}
	for _, scope := range offered.Scopes {
		if scope.Name == c.Ask.Scope {
			c.kind = scope.Credential
		}
	}
	return c.Check()
}

// longest obtains a credential. If no TTL was given, it asks for the longest; if policy denies that, it asks again with the
// longest TTL that policy allows.
func (e *Environment) longest(ctx context.Context, ask client.Ask, waiting func(client.Pending)) (*client.Token, error) {
	given := ask.TTL
	ask.TTL = cmp.Or(given, LongestTTL)
	token, err := e.Broker.Obtain(ctx, ask, waiting)
	problem, refused := errors.AsType[*client.Problem](err)
	if given != 0 || !refused || !errors.Is(err, client.ErrDenied) {
		return token, err
	}
	// The nearest permitted request may be this one with a shorter TTL.
	if near := problem.Narrowest; near.Scope == ask.Scope && near.TTL > 0 && sameParams(near.Params, ask.Params) {
		ask.TTL = time.Duration(near.TTL) * time.Second
		return e.Broker.Obtain(ctx, ask, waiting)
	}
	return nil, err
}

func sameParams(a, b map[string]any) bool {
	type request struct {
		Params map[string]any `json:",omitempty"` // nil and empty are the same
	}
	first, err := json.Marshal(request{a})
	second, failed := json.Marshal(request{b})
	return err == nil && failed == nil && bytes.Equal(first, second)
}

// Environ returns the environment of the program: environ without the variables that would lead it to other credentials, and
// with those that lead it to its own.
func (e *Environment) Environ(environ []string) []string {
	var places []*place
	for _, c := range e.Credentials {
		places = append(places, c.places...)
	}
	environ = slices.DeleteFunc(slices.Clone(environ), func(pair string) bool {
		name, _, _ := strings.Cut(pair, "=")
		return slices.ContainsFunc(places, func(to *place) bool {
			return slices.ContainsFunc(to.hides, func(hidden string) bool { return strings.EqualFold(name, hidden) }) // npm ignores case
		})
	})
	count, settings := 0, []string(nil)
	for _, pair := range environ {
		if text, ok := strings.CutPrefix(pair, "GIT_CONFIG_COUNT="); ok {
			count, _ = strconv.Atoi(text) // git itself refuses what is no number
			count = max(0, count)
		}
	}
	for _, to := range places {
		environ = append(environ, to.variables()...)
		for _, setting := range to.git {
			settings = append(settings, fmt.Sprintf("GIT_CONFIG_KEY_%d=%s", count, setting[0]), fmt.Sprintf("GIT_CONFIG_VALUE_%d=%s", count, setting[1]))
			count++
		}
	}
	if settings != nil {
		environ = append(append(environ, settings...), "GIT_CONFIG_COUNT="+strconv.Itoa(count))
	}
	return environ
}

// End removes and releases all credentials. The error says which could not be released; these expire.
func (e *Environment) End(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, EndWithin)
	defer cancel()
	var errs []error
	for _, c := range e.Credentials {
		c.remove()
		if c.hold != nil {
			errs = append(errs, c.hold.Close(ctx))
		} else if c.once != nil {
			_, err := e.Broker.Release(ctx, c.once.ID)
			errs = append(errs, err)
		}
	}
	if e.MadeUp && e.Used {
		// This also ends credentials that were issued but never arrived.
		_, err := e.Broker.EndTask(ctx, e.Task, client.TaskEnd{Reason: "the program has ended"})
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// Credential is one credential of the program: what is requested, and where the credential goes.
type Credential struct {
	Ask    client.Ask
	places []*place
	kind   string // the kind of the credential, if it matters before there is one

	mu    sync.Mutex
	ended bool // nothing is delivered any more

	hold *client.Hold  // renews the credential; nil before the first one, or if it cannot be renewed
	once *client.Token // the credential that is not renewed
}

// Deliver adds a place to deliver to. kind is the name of the flag (env, file, socket or for), and target its value. getenv reads
// the environment.
func (c *Credential) Deliver(kind, target string, folder *private.Folder, getenv func(string) string) (err error) {
	var to *place
	name, of := target, extractField("")
	if parts := targetField.FindStringSubmatch(target); parts != nil {
		name, of = parts[1], extractField(parts[2])
	}
	var path string
	if kind == "file" || kind == "socket" {
		path, err = folder.Resolve(name)
	}
	switch kind {
	case "env":
		if !variableName.MatchString(name) {
			err = fmt.Errorf("%q is neither NAME nor NAME=FIELD of a variable", target)
		}
		to = variable(name, of)
	case "file":
		to = file(path, of)
	case "socket":
		to = socket(path, of)
	default:
		to, err = c.newTemplate(target, folder.Path, getenv)
	}
	c.places = append(c.places, to)
	return err
}

// inEnv returns how many places are variables for a credential of this kind.
func (c *Credential) inEnv(kind string) (n int) {
	for _, to := range c.places {
		if to.env.of(kind) {
			n++
		}
	}
	return n
}

// Delivered reports whether the credential goes anywhere.
func (c *Credential) Delivered() bool { return len(c.places) > 0 }

// Check returns an error if the places exclude each other.
func (c *Credential) Check() error {
	if n := c.inEnv(c.kind); n > 0 && n < len(c.places) {
		return errors.New("an environment variable cannot be renewed: use a separate --scope for --env, and for --for openai and anthropic with a key")
	}
	return nil
}

func (c *Credential) put(token *client.Token) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return nil
	}
	var errs []error
	for _, to := range c.places {
		errs = append(errs, to.put(token))
	}
	return errors.Join(errs...)
}

// remove removes the credential from all places, and stops later deliveries.
func (c *Credential) remove() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = true
	for _, to := range c.places {
		to.remove()
	}
}

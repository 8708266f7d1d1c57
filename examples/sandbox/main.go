// Command sandbox is an example of the Go SDK: a program that holds a credential for as long as it runs.
//
// It reads the variables that `brevet dev env` prints: BREVET_SERVER, BREVET_SERVER_ID and SPIFFE_ENDPOINT_SOCKET. It must
// never print a credential.
package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"
	"time"

	"github.com/brevet-dev/brevet/client"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/spiffetls/tlsconfig"
	"github.com/spiffe/go-spiffe/v2/workloadapi"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context) error {
	// SPIFFE_ENDPOINT_SOCKET names the Workload API's socket.
	source, err := workloadapi.NewX509Source(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = source.Close() }()
	server, err := spiffeid.FromString(os.Getenv("BREVET_SERVER_ID"))
	if err != nil {
		return err
	}
	broker, err := client.New(client.Config{BaseURL: os.Getenv("BREVET_SERVER")},
		client.WithX509(source, source, tlsconfig.AuthorizeID(server)))
	if err != nil {
		return err
	}
	defer broker.Close()

	// A task ends for good, so each run has its own.
	task := "example-" + rand.Text()
	hold, err := broker.Hold(ctx, client.HoldConfig{
		Ask: client.Ask{
			Scope: "github.issues.read", Params: map[string]any{"repo": "acme/api"}, Task: task, Reason: "triage",
		},
		Waiting: func(p client.Pending) { log.Printf("waiting for %s", p.Group) },
		Failed:  func(err error) { log.Printf("not renewed: %v", err) },
	})
	if errors.Is(err, client.ErrDenied) {
		return fmt.Errorf("policy says no: %w", err)
	} else if err != nil {
		return err
	}
	work(hold.Token())
	return end(broker, hold, task)
}

// work stands for what a program does with a credential. For a JWT, set "Authorization: Bearer " and token.Secret.Reveal(). A
// real program calls hold.Token() for each call, because the Hold renews the token.
func work(token *client.Token) {
	fmt.Printf("holds %s on %s\n", token.Scope, token.Resource)
}

// end releases the credential and ends the task, also after an interrupt.
func end(broker *client.Client, hold *client.Hold, task string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := hold.Close(ctx); err != nil {
		return err
	}
	receipt, err := broker.EndTask(ctx, task, client.TaskEnd{Reason: "done"})
	if err != nil {
		return err
	}
	fmt.Printf("task %s ended; alive at that time: %d\n", task, len(receipt.Ended))
	return nil
}

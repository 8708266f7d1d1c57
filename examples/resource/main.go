// Command resource is an example of a server that accepts Brevet's access tokens. It takes three lines, and the handler can
// read what a token allows.
//
// It reads BREVET_ISSUER, AUDIENCE and ORIGIN, and TLS_CERT and TLS_KEY, the files with the server's certificate and key.
package main

import (
	"crypto/tls"
	"fmt"
	"log"
	"net/http"
	"os"
	"time"

	"github.com/brevet-dev/brevet/resourceserver"
)

func main() {
	handler, err := handlerFor(resourceserver.Config{
		Issuer: os.Getenv("BREVET_ISSUER"), Audience: os.Getenv("AUDIENCE"), Origin: os.Getenv("ORIGIN"),
	})
	if err != nil {
		log.Fatal(err)
	}
	server := &http.Server{
		Addr: "127.0.0.1:8443", Handler: handler, ReadHeaderTimeout: 5 * time.Second,
		// Request a client certificate, but do not verify it: for a token that is bound to one, only its thumbprint counts.
		TLSConfig: &tls.Config{MinVersion: tls.VersionTLS13, ClientAuth: tls.RequestClientCert},
	}
	log.Fatal(server.ListenAndServeTLS(os.Getenv("TLS_CERT"), os.Getenv("TLS_KEY")))
}

func handlerFor(cfg resourceserver.Config) (http.Handler, error) {
	guard, err := resourceserver.New(cfg)
	if err != nil {
		return nil, err
	}
	return guard.Handler(http.HandlerFunc(mail)), nil
}

// mail checks the token's scope before it does anything.
func mail(w http.ResponseWriter, r *http.Request) {
	claims, ok := resourceserver.FromContext(r.Context())
	if !ok || claims.Scope != "mail.read" {
		http.Error(w, "the token is for something else", http.StatusForbidden)
		return
	}
	fmt.Fprintf(w, "the mail of %s, for the task %s\n", claims.Subject, claims.Task)
}

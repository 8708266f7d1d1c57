// Command resource shows a server that takes Brevet's access tokens: three lines, and what a token allows is at hand.
//
// It takes BREVET_ISSUER, AUDIENCE and ORIGIN, and TLS_CERT and TLS_KEY, the files of its own certificate.
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
		// A certificate is asked for and not verified: for a token that is bound to one, its thumbprint is what counts.
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

// mail looks at what the token was issued for, before it does anything.
func mail(w http.ResponseWriter, r *http.Request) {
	claims, ok := resourceserver.FromContext(r.Context())
	if !ok || claims.Scope != "mail.read" {
		http.Error(w, "the token is for something else", http.StatusForbidden)
		return
	}
	fmt.Fprintf(w, "the mail of %s, for the task %s\n", claims.Subject, claims.Task)
}

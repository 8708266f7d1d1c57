package main

import (
	"fmt"
	"io"
	"log"
	"sync"

	"github.com/go-logr/logr"
	"go.opentelemetry.io/otel"
	"google.golang.org/grpc/grpclog"
)

// hideLibraries takes from the loggers of libraries what they would write to standard error. net/http prints what a server sends
// after a response, and with GODEBUG=http2debug=2 every header. Both can be credentials, and a confined program can read the
// standard error that it shares with its gateway. The user reads once that something was left out.
func hideLibraries(errOut io.Writer) {
	hidden := hiddenText{sync.OnceFunc(func() {
		fmt.Fprintln(errOut, "brevet: a library reported a problem, such as a server that sends more than its response. Brevet leaves out the text, which can contain secrets.")
	})}
	log.SetFlags(0)
	log.SetOutput(hidden)
	otel.SetLogger(logr.Discard())
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(error) { hidden.tell() }))
	grpclog.SetLoggerV2(grpclog.NewLoggerV2(io.Discard, io.Discard, io.Discard))
}

// hiddenText accepts text and keeps nothing of it.
type hiddenText struct{ tell func() }

func (h hiddenText) Write(p []byte) (int, error) {
	h.tell()
	return len(p), nil
}

package httpapi

import (
	"context"
	"log"
	"log/slog"
	"net"
	"strings"
	"time"

	"github.com/brevet-dev/brevet/broker"
	"github.com/brevet-dev/brevet/internal/refusal"
	. "github.com/brevet-dev/brevet/openapi"
)

// recordTimeout bounds the recording of a handshake, because its connection has no deadline by then.
const recordTimeout = 5 * time.Second

// lowLog logs the errors of net/http that occur before there is a call.
type lowLog struct {
	to     *log.Logger
	record func(remote string)
}

const (
	handshakeFailed = "http: TLS handshake error from "
	keyMissing      = "invalid signature by the client certificate"
)

// Write logs a line. If the client does not have the key of its certificate, the handshake fails after the certificate was
// accepted and before there is a call. Only this line reports it.
func (l *lowLog) Write(line []byte) (int, error) {
	l.to.Print(string(line))
	if text, ok := strings.CutPrefix(string(line), handshakeFailed); ok && strings.Contains(text, keyMissing) {
		remote, _, _ := strings.Cut(text, ": ")
		l.record(remote)
	}
	return len(line), nil
}

// recordStolen records that a client at remote presented a certificate without its key.
func (s *Server) recordStolen(remote string) {
	recordHandshake(s.cfg.Broker, s.cfg.Log, remote, "svid_key_missing")
}

// RecordHandshakes returns a function for attest.Config.OnRefusal. It records what never becomes a call: a client certificate
// that is not an acceptable SVID.
func RecordHandshakes(core *broker.Broker, log *slog.Logger) func(remote net.Addr, refused error) {
	return func(remote net.Addr, refused error) {
		recordHandshake(core, log, remote.String(), refusal.Reason(refused))
	}
}

func recordHandshake(core *broker.Broker, log *slog.Logger, remote, detail string) {
	ctx, cancel := context.WithTimeout(context.Background(), recordTimeout)
	defer cancel()
	host, _, err := net.SplitHostPort(remote)
	if err != nil {
		host = ""
	}
	if err := core.Refuse(ctx, broker.Refusal{
		Code: string(CodeUnauthenticated), Detail: detail, Remote: host, Operation: "tlsHandshake",
	}); err != nil {
		log.ErrorContext(ctx, "refused handshake not recorded", "error", err)
	}
}

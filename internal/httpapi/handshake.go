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

// recordTimeout bounds the record of a handshake: its connection has no deadline of its own by then.
const recordTimeout = 5 * time.Second

// lowLog is the log of what goes wrong below a call.
type lowLog struct {
	to     *log.Logger
	record func(remote string)
}

const (
	handshakeFailed = "http: TLS handshake error from "
	keyMissing      = "invalid signature by the client certificate"
)

// Write passes a line on. A handshake with a certificate whose key the caller does not have fails after the
// certificate was accepted and before there is a call: only this line tells of it.
func (l *lowLog) Write(line []byte) (int, error) {
	l.to.Print(string(line))
	if text, ok := strings.CutPrefix(string(line), handshakeFailed); ok && strings.Contains(text, keyMissing) {
		remote, _, _ := strings.Cut(text, ": ")
		l.record(remote)
	}
	return len(line), nil
}

// recordStolen records that someone at remote showed a certificate that is not theirs.
func (s *Server) recordStolen(remote string) {
	recordHandshake(s.cfg.Broker, s.cfg.Log, remote, "svid_key_missing")
}

// RecordHandshakes is for attest.Config.OnRefusal. It records what never becomes a request: a client certificate that
// is no acceptable SVID.
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

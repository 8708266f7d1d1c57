package server

import (
	"context"
	"log/slog"
	"net"
	"time"

	"github.com/brevet-dev/brevet/attest"
	"github.com/brevet-dev/brevet/broker"
	. "github.com/brevet-dev/brevet/openapi"
)

// recordTimeout bounds the record of a handshake: its connection has no deadline of its own by then.
const recordTimeout = 5 * time.Second

// RecordHandshakes is for attest.Config.OnRefusal. It records what never becomes a request: a client certificate that
// is no acceptable SVID.
func RecordHandshakes(core *broker.Broker, log *slog.Logger) func(remote net.Addr, refused error) {
	return func(remote net.Addr, refused error) {
		ctx, cancel := context.WithTimeout(context.Background(), recordTimeout)
		defer cancel()
		host, _, err := net.SplitHostPort(remote.String())
		if err != nil {
			host = ""
		}
		if err := core.Refuse(ctx, broker.Refusal{
			Code: string(CodeUnauthenticated), Detail: attest.Reason(refused), Remote: host, Operation: "tlsHandshake",
		}); err != nil {
			log.ErrorContext(ctx, "refused handshake not recorded", "error", err)
		}
	}
}

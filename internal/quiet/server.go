package quiet

import (
	"log"
	"log/slog"
	"strings"
)

// fixed are the beginnings of the texts of [http.Server] that quote nothing of a call.
var fixed = []string{"http: TLS handshake error from ", "http: Accept error: "}

// ServerLog returns a logger for [http.Server.ErrorLog] that writes at debug level, because any client can cause these errors. It
// leaves out what net/http may quote of calls: the values of panics, and with GODEBUG=http2debug=1 the bodies.
func ServerLog(to *slog.Logger) *log.Logger {
	return log.New(serverLog{slog.NewLogLogger(to.Handler(), slog.LevelDebug)}, "", 0)
}

type serverLog struct{ to *log.Logger }

func (l serverLog) Write(line []byte) (int, error) {
	text := string(line)
	for _, beginning := range fixed {
		if strings.HasPrefix(text, beginning) {
			l.to.Print(text)
			return len(line), nil
		}
	}
	if _, stack, ok := strings.Cut(text, "\ngoroutine "); ok {
		l.to.Print("http: panic\ngoroutine " + stack)
	}
	return len(line), nil
}

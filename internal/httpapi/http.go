package httpapi

import (
	"context"
	"crypto/tls"
	"log"
	"log/slog"
	"net"
	"net/http"
	"time"
)

// What one client may take of the server. A call is small and answered fast, so all of it is tight.
const (
	readHeaderTimeout = 5 * time.Second
	readTimeout       = 10 * time.Second
	writeTimeout      = 30 * time.Second
	idleTimeout       = time.Minute
	maxHeaderBytes    = 16 << 10
	// maxConnectionAge is when a connection is asked to close, so that clients spread over replicas and handshakes
	// meet current bundles. The identity is verified on every call regardless.
	maxConnectionAge = 15 * time.Minute
)

type connectionStart struct{}

// HTTP returns a server for the API with every limit set; serve it with ServeTLS(listener, "", ""). tlsConfig has to
// ask for client certificates as attest.Attestor.TLSConfig does.
func (s *Server) HTTP(tlsConfig *tls.Config) *http.Server {
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	api := &http.Server{
		Handler:                      s.handler,
		TLSConfig:                    tlsConfig,
		Protocols:                    &protocols,
		ReadHeaderTimeout:            readHeaderTimeout,
		ReadTimeout:                  readTimeout,
		WriteTimeout:                 writeTimeout,
		IdleTimeout:                  idleTimeout,
		MaxHeaderBytes:               maxHeaderBytes,
		DisableGeneralOptionsHandler: true,
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: 100,
			SendPingTimeout:      20 * time.Second,
			PingTimeout:          10 * time.Second,
			WriteByteTimeout:     10 * time.Second,
		},
		// What goes wrong below a call is for anyone to cause at will, so it must not fill the log.
		ErrorLog: log.New(&lowLog{to: slog.NewLogLogger(s.cfg.Log.Handler(), slog.LevelDebug), record: s.recordStolen}, "", 0),
		ConnContext: func(ctx context.Context, _ net.Conn) context.Context {
			return context.WithValue(ctx, connectionStart{}, s.cfg.Now())
		},
	}
	api.RegisterOnShutdown(func() { s.closing.Do(func() { close(s.closed) }) })
	return api
}

// Leave has /readyz say that this replica goes, and each answer close its connection, so that callers come back by way of those who
// have read that. Calls are answered as ever: the server has to be shut down later.
func (s *Server) Leave() { s.leaving.Store(true) }

// aged says whether the call's connection is to close after its answer.
func (s *Server) aged(r *http.Request) bool {
	start, ok := r.Context().Value(connectionStart{}).(time.Time)
	return s.leaving.Load() || ok && s.cfg.Now().Sub(start) >= maxConnectionAge
}

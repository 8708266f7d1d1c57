package ratelimit

import (
	"net"
	"net/http"
)

// RemoteIP is the IP address of a connection's peer, empty when there is none. No header has a say in it.
func RemoteIP(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return ""
	}
	return host
}

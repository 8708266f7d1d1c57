package ratelimit

import (
	"net"
	"net/http"
)

// RemoteIP returns the IP address of the connection's peer, or "" if it is unknown. It ignores all headers.
func RemoteIP(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return ""
	}
	return host
}

package dpop

import (
	"net/url"
	"strings"
)

// sameURL reports whether two URLs are the same, ignoring query and fragment. A URL that no request can have equals no
// other one.
func sameURL(a, b string) bool {
	one, ok := normal(a)
	if !ok {
		return false
	}
	other, ok := normal(b)
	return ok && one == other
}

// normal returns the URL in the normal form of RFC 3986, section 6.2: host in lower case, no default port, no unnecessary
// escapes. It rejects a URL with a user or with dot segments, which no request has either.
func normal(address string) (string, bool) {
	u, err := url.Parse(address)
	if err != nil || u.Host == "" || u.User != nil || u.Opaque != "" {
		return "", false
	}
	host := strings.ToLower(u.Host) // url.Parse has already lower-cased the scheme
	switch u.Scheme {
	case "https":
		host = strings.TrimSuffix(host, ":443")
	case "http":
		host = strings.TrimSuffix(host, ":80")
	default:
		return "", false
	}
	path := unescape(u.EscapedPath())
	for segment := range strings.SplitSeq(path, "/") {
		if segment == "." || segment == ".." {
			return "", false
		}
	}
	if path == "" {
		path = "/"
	}
	return u.Scheme + "://" + strings.TrimSuffix(host, ":") + path, true
}

// unescape decodes escaped unreserved characters, and writes all other escapes in upper case.
func unescape(path string) string {
	var out strings.Builder
	for i := 0; i < len(path); i++ {
		if path[i] != '%' || i+2 >= len(path) {
			out.WriteByte(path[i])
			continue
		}
		escape := path[i : i+3]
		i += 2
		if text, err := url.PathUnescape(escape); err == nil && unreserved(text[0]) {
			out.WriteString(text)
		} else {
			out.WriteString(strings.ToUpper(escape))
		}
	}
	return out.String()
}

func unreserved(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("-._~", c) >= 0
}

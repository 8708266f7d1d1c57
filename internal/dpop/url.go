package dpop

import (
	"net/url"
	"strings"
)

// sameURL tells whether two addresses are one, without their query and fragment. What is not the address of a request is
// like no other.
func sameURL(a, b string) bool {
	one, ok := normal(a)
	if !ok {
		return false
	}
	other, ok := normal(b)
	return ok && one == other
}

// normal is the address in the form of RFC 3986, section 6.2: names in lower case, no default port, no needless escapes.
// It has none with a user or with dot segments, which no request has either.
func normal(address string) (string, bool) {
	u, err := url.Parse(address)
	if err != nil || u.Host == "" || u.User != nil || u.Opaque != "" {
		return "", false
	}
	host := strings.ToLower(u.Host) // the scheme is in lower case already
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

// unescape writes unreserved characters as themselves, and all other escapes in upper case.
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

package egress_test

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// hiding is an attempt to get a header past the gateway. If want is 200, the call passes, and the host gets no such header.
type hiding struct {
	name string
	try  func(t *testing.T, r *rows, header string) got
	want int
	code string
}

// inText returns an attempt with HTTP/1.1 in a tunnel. H! stands for the name of the header in the lines.
func inText(lines, body string) func(*testing.T, *rows, string) got {
	return func(t *testing.T, r *rows, header string) got {
		t.Helper()
		text := "PUT /header/plain HTTP/1.1\r\nHost: " + r.host.name() + "\r\n" + lines + body
		return say(t, r.tunnel(t, r.host.name()), strings.ReplaceAll(text, "H!", header))
	}
}

// like returns an attempt with a name that some hosts read as the name of the header: the first n hyphens are another mark. The name
// ends with one more, since some have none.
func like(mark string, n int, lines string) func(*testing.T, *rows, string) got {
	return func(t *testing.T, r *rows, header string) got {
		t.Helper()
		body := noBody
		if strings.Contains(lines, "chunked") {
			body = "\r\n"
		}
		return inText(lines, body)(t, r, strings.Replace(header+"-", "-", mark, n))
	}
}

// inFrames returns an attempt with HTTP/2 in a tunnel.
func inFrames(fields, trailers func(header string) []hpack.HeaderField) func(*testing.T, *rows, string) got {
	return func(t *testing.T, r *rows, header string) got {
		t.Helper()
		conn, err := r.tunnelTo(t, r.host.name(), "example.com", "h2")
		if err != nil {
			t.Fatal(err)
		}
		all := append([]hpack.HeaderField{
			{Name: ":method", Value: "PUT"}, {Name: ":scheme", Value: "https"}, {Name: ":authority", Value: r.host.name()}, {Name: ":path", Value: "/header/plain"},
		}, fields(strings.ToLower(header))...)
		return sayInFrames(t, conn, all, trailers(strings.ToLower(header)))
	}
}

func noFields(string) []hpack.HeaderField { return nil }

// sayInFrames sends a call with a body as HTTP/2, in frames that no client would send, and reads one response. The last of the
// fields ends in a second frame. A stream that the server resets has the status 0.
func sayInFrames(t *testing.T, conn net.Conn, fields, trailers []hpack.HeaderField) got {
	t.Helper()
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	encode := func(fields []hpack.HeaderField) []byte {
		block.Reset()
		for _, f := range fields {
			_ = encoder.WriteField(f) // a buffer takes all
		}
		return bytes.Clone(block.Bytes())
	}
	_ = conn.SetDeadline(time.Now().Add(patience))
	_, err := io.WriteString(conn, http2.ClientPreface)
	framer := http2.NewFramer(conn, conn)
	framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	head := encode(fields)
	for _, write := range []func() error{
		func() error { return framer.WriteSettings() },
		func() error {
			return framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: head[:len(head)-3]})
		},
		func() error { return framer.WriteContinuation(1, true, head[len(head)-3:]) },
		func() error { return framer.WriteData(1, len(trailers) == 0, []byte("hello")) },
		func() error {
			if len(trailers) == 0 {
				return nil
			}
			return framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: encode(trailers), EndHeaders: true, EndStream: true})
		},
	} {
		if err == nil {
			err = write()
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	answer := got{proto: "HTTP/2.0", header: http.Header{}}
	for {
		frame, err := framer.ReadFrame()
		if err != nil {
			t.Fatalf("reading an answer: %v", err)
		}
		switch frame := frame.(type) {
		case *http2.MetaHeadersFrame:
			_, _ = fmt.Sscan(frame.PseudoValue("status"), &answer.status)
			for _, f := range frame.RegularFields() {
				answer.header.Add(f.Name, f.Value)
			}
		case *http2.DataFrame:
			answer.text += string(frame.Data())
		case *http2.RSTStreamFrame:
			return got{text: frame.ErrCode.String()}
		case *http2.GoAwayFrame:
			return got{text: frame.ErrCode.String()}
		}
		if frame.Header().StreamID == 1 && frame.Header().Flags.Has(http2.FlagDataEndStream) {
			return answer
		}
	}
}

const (
	noBody   = "Content-Length: 0\r\n\r\n"
	noHeader = "2\r\nhi\r\n0\r\n"
)

var hidings = []hiding{
	{"for the next hop", inText("Connection: H!\r\nH!: /x\r\n", noBody), 403, "egress_header"},
	{"for the next hop among others", inText("Connection: keep-alive, te ,\tH!\r\nTE: trailers\r\nH!: /x\r\n", noBody), 403, "egress_header"},
	{"for the next hop in a call that becomes a WebSocket", inText("Connection: Upgrade, H!\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nH!: /x\r\n", noBody), 403, "egress_header"},
	{"twice", inText("H!:\r\nH!: /x\r\n", noBody), 403, "egress_header"},
	{"behind a bare LF", inText("Accept: */*\nH!: /x\r\n", noBody), 403, "egress_header"},
	{"behind a bare CR", inText("Accept: */*\rH!: /x\r\n", noBody), 400, ""},
	{"behind a NUL", inText("Accept: */*\x00H!: /x\r\n", noBody), 400, ""},
	{"before a space", inText("H! : /x\r\n", noBody), 400, ""},
	{"before a tab", inText("H!\t: /x\r\n", noBody), 400, ""},
	{"in a line that continues another", inText("Accept: */*\r\n H!: /x\r\n", noBody), 200, ""},
	{"in a line that continues the Host", inText(" H!: /x\r\n", noBody), 400, ""},
	{"over HTTP/1.0", func(t *testing.T, r *rows, header string) got {
		t.Helper()
		return say(t, r.tunnel(t, r.host.name()), "PUT /header/plain HTTP/1.0\r\nHost: "+r.host.name()+"\r\n"+header+": /x\r\n"+noBody)
	}, 403, "egress_header"},
	{"as a trailer", inText("Transfer-Encoding: chunked\r\nTrailer: H!\r\n\r\n", noHeader+"H!: /x\r\n\r\n"), 200, ""},
	{"as a trailer that is not announced", inText("Transfer-Encoding: chunked\r\n\r\n", noHeader+"H!: /x\r\n\r\n"), 200, ""},
	{"as a trailer for the next hop", inText("Transfer-Encoding: chunked\r\nConnection: H!\r\nTE: trailers\r\nTrailer: H!\r\n\r\n", noHeader+"H!: /x\r\n\r\n"), 200, ""},
	{"in an extension of a chunk", inText("Transfer-Encoding: chunked\r\n\r\n", "2;H!=/x\r\nhi\r\n0\r\n\r\n"), 200, ""},
	{"with underscores", like("_", -1, "H!: /x\r\n"), 200, ""},
	{"with one underscore", like("_", 1, "H!: /x\r\n"), 200, ""},
	{"with dots", like(".", -1, "H!: /x\r\n"), 200, ""},
	{"with underscores for the next hop", like("_", -1, "Connection: H!\r\nH!: /x\r\n"), 200, ""},
	{"with underscores in a trailer", like("_", -1, "Transfer-Encoding: chunked\r\nTrailer: H!\r\n\r\n"+noHeader+"H!: /x\r\n"), 200, ""},
	{"in the request for the tunnel", func(t *testing.T, r *rows, header string) got {
		t.Helper()
		client := r.proxied(t)
		client.Transport.(*http.Transport).ProxyConnectHeader = http.Header{header: {"/x"}}
		return call(t, client, request(t, "PUT", "https://"+r.host.name()+"/header/plain", strings.NewReader("hello")))
	}, 200, ""},
	{"in a second frame over HTTP/2", inFrames(func(header string) []hpack.HeaderField {
		return []hpack.HeaderField{{Name: "accept", Value: "*/*"}, {Name: header, Value: "/other/secret"}}
	}, noFields), 403, "egress_header"},
	{"in upper case over HTTP/2", inFrames(func(header string) []hpack.HeaderField {
		return []hpack.HeaderField{{Name: strings.ToUpper(header), Value: "/other/secret"}}
	}, noFields), 0, ""},
	{"for the next hop over HTTP/2", inFrames(func(header string) []hpack.HeaderField {
		return []hpack.HeaderField{{Name: "connection", Value: header}, {Name: header, Value: "/other/secret"}}
	}, noFields), 400, ""},
	{"in a value over HTTP/2", inFrames(func(header string) []hpack.HeaderField {
		return []hpack.HeaderField{{Name: "accept", Value: "*/*\r\n" + header + ": /other/secret"}}
	}, noFields), 0, ""},
	{"in a name over HTTP/2", inFrames(func(header string) []hpack.HeaderField {
		return []hpack.HeaderField{{Name: "accept: */*\r\n" + header, Value: "/other/secret"}}
	}, noFields), 0, ""},
	{"as a pseudo-header over HTTP/2", inFrames(func(header string) []hpack.HeaderField {
		return []hpack.HeaderField{{Name: ":" + header, Value: "/other/secret"}}
	}, noFields), 0, ""},
	{"with underscores over HTTP/2", inFrames(func(header string) []hpack.HeaderField {
		return []hpack.HeaderField{{Name: strings.ReplaceAll(header+"-", "-", "_"), Value: "/other/secret"}}
	}, noFields), 200, ""},
	{"as a trailer over HTTP/2", inFrames(func(header string) []hpack.HeaderField {
		return []hpack.HeaderField{{Name: "trailer", Value: header}}
	}, func(header string) []hpack.HeaderField {
		return []hpack.HeaderField{{Name: header, Value: "/other/secret"}}
	}), 200, ""},
	{"as a trailer over HTTP/2 that is not announced", inFrames(func(string) []hpack.HeaderField {
		return []hpack.HeaderField{{Name: "accept", Value: "*/*"}}
	}, func(header string) []hpack.HeaderField {
		return []hpack.HeaderField{{Name: header, Value: "/other/secret"}}
	}), 200, ""},
}

// letters returns a name without what programs add or replace in the names of headers.
func letters(name string) string {
	return strings.Map(func(c rune) rune {
		if c < 'a' || c > 'z' {
			return -1
		}
		return c
	}, strings.ToLower(name))
}

// A header that the gateway refuses, or another that a host could read as that header, does not reach a host in any other part of
// a call either.
func TestHiddenHeadersReachNoHost(t *testing.T) {
	r := newRows(t)
	r.host.mux.HandleFunc("/header/plain", func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) })
	i := slices.IndexFunc(sendings, func(s sending) bool { return s.name == "header" })
	for _, h := range hidings {
		for _, name := range append(slices.Clone(refusedHeaders), "X-Original-URL", "X-Rewrite-URL") {
			if h.code == "egress_header" && !slices.Contains(refusedHeaders, name) {
				continue // removed, as TestTargetsThatProxiesReportAreRemoved shows
			}
			t.Run(strings.ReplaceAll(h.name+"/"+name, " ", "_"), func(t *testing.T) {
				answer := h.try(t, r, name)
				code, _ := answer.problem()
				if answer.status != h.want || code != h.code {
					t.Errorf("got %d %s, want %d %s", answer.status, answer.text, h.want, h.code)
				}
				if h.want != 200 {
					r.wantNoCall(t)
					return
				}
				seen := r.one(t, sendings[i])
				for _, all := range []http.Header{seen.Header, seen.Trailer} {
					for field := range all {
						if letters(field) == letters(name) {
							t.Errorf("the host got %s in\n%s\n%v", field, header(seen), seen.Trailer)
						}
					}
				}
			})
		}
	}
}

// For every way to send a credential, a * in the path of a rule stands for no custom verb, however the colon is written, and
// neither does the segment with a verb stand for another one.
func TestWildcardsPassNoCustomVerb(t *testing.T) {
	r := newRows(t)
	entrances := r.entrances(t)
	for _, s := range sendings {
		for path, passes := range map[string]bool{
			"/items/x":                          true,
			"/items/x:setIamPolicy":             false,
			"/items/x%3AsetIamPolicy":           false,
			"/items/x%3asetIamPolicy":           false,
			"/items/x%253AsetIamPolicy":         false,
			"/items/x%EF%BC%9AsetIamPolicy":     false, // a full-width colon
			"/items/x%EF%B9%95setIamPolicy":     false, // a small colon
			"/items/x:":                         false,
			"/items/x%3A":                       false,
			"/items/:setIamPolicy":              false,
			"/items/%3AsetIamPolicy":            false,
			"/items/x:y:setIamPolicy":           false,
			"/items/x/..:setIamPolicy":          false,
			"/items/x:setIamPolicy?alt=json":    false,
			"/items/x%3AsetIamPolicy?$.xgafv=1": false,
			"/items/x?y:setIamPolicy":           true,
			"/asked/x:get":                      true,
			"/asked/x%3Aget":                    true,
			"/asked/x":                          false,
			"/asked/x:set":                      false,
			"/asked/x%3Aset":                    false,
			"/asked/x:y:get":                    false,
			"/asked/x%3Aset:get":                false,
			"/asked/x:get%3Aset":                false,
			"/asked/:get":                       false,
		} {
			t.Run(s.name+strings.ReplaceAll(path, "/", "_"), func(t *testing.T) {
				for _, e := range entrances {
					answer := e.try(t, r.at(s, path), nil)
					if passes {
						want, err := url.Parse(r.at(s, path))
						if err != nil {
							t.Fatal(err)
						}
						if seen := r.one(t, s); answer.status != 200 || seen.URL.Path != want.Path {
							t.Errorf("%s by %s: got %d %s, and the host got %s", e.proto, e.name, answer.status, answer.text, seen.URL.Path)
						}
						continue
					}
					if code, _ := answer.problem(); answer.status != 403 || code != "egress_no_rule" {
						t.Errorf("%s by %s: got %d %s, want it refused", e.proto, e.name, answer.status, answer.text)
					}
					r.wantNoCall(t)
				}
			})
		}
	}
}

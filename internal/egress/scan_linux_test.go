package egress_test

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/brevet-dev/brevet/internal/testkit"
)

// recorder relays connections to the gateway, and records the bytes of both directions.
func recorder(t *testing.T, to string) (addr string, kept *testkit.Buffer) {
	t.Helper()
	kept = &testkit.Buffer{}
	l := listen(t, "tcp", "127.0.0.1:0")
	var all sync.WaitGroup
	t.Cleanup(func() { _ = l.Close(); all.Wait() })
	all.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", to)
			if err != nil {
				_ = in.Close()
				return
			}
			for _, way := range [][2]net.Conn{{in, out}, {out, in}} {
				all.Go(func() {
					_, _ = io.Copy(io.MultiWriter(way[0], kept), way[1])
					_, _ = in.Close(), out.Close()
				})
			}
		}
	})
	return l.Addr().String(), kept
}

// memory returns the writable memory of a process.
func memory(t *testing.T, pid int) []byte {
	t.Helper()
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		t.Fatal(err)
	}
	mem, err := os.Open(fmt.Sprintf("/proc/%d/mem", pid))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = mem.Close() }()
	var all []byte
	for line := range strings.Lines(string(maps)) {
		var from, to int64
		if n, _ := fmt.Sscanf(line, "%x-%x", &from, &to); n != 2 || !strings.Contains(line, " rw") {
			continue
		}
		page := make([]byte, to-from)
		n, _ := mem.ReadAt(page, from)
		all = append(all, page[:n]...)
	}
	return all
}

// A sandbox calls hosts with every credential, and some hosts echo it. Yet the sandbox has no credential in its environment,
// its files, its memory or its traffic.
func TestSandboxHoldsNoCredentials(t *testing.T) {
	g := newGuarded(t)
	a := newAbroad(t, guardedScopes(g))
	w := a.world
	g.authority.Store(w.clientAuthority(t))
	w.host.mux.HandleFunc("/s3/echo", func(rw http.ResponseWriter, r *http.Request) { _ = json.NewEncoder(rw).Encode(r.Header) })
	key := w.storeCertificate(t)
	gateway := w.addr
	var traffic *testkit.Buffer
	w.addr, traffic = recorder(t, gateway)
	b := w.toolbox(t)
	cmd := exec.CommandContext(t.Context(), "python3", "-c", `
import os, sys, urllib.request
kept = []
host = os.environ["HOST"]
for url in [host + path for path in ["/key/echo", "/basic", "/bearer", "/query", "/token", "/key/away", "/s3/echo"] + ["/cloud/" + way + "/x" for way in os.environ["CLOUDS"].split()]] + [os.environ["GUARDED"]]:
    try:
        answer = urllib.request.urlopen(url)
    except Exception as e:
        answer = e
    kept.append((str(getattr(answer, "headers", "")), answer.read() if hasattr(answer, "read") else b""))
urllib.request.urlopen(urllib.request.Request(
    os.environ["BREVET_EGRESS_URL"] + "/" + os.environ["NAME"] + "/key/echo", headers={"Authorization": "Bearer " + os.environ["BREVET_EGRESS_PASSWORD"]})).read()
open("kept", "w").write(repr(kept))
print("ready", flush=True)
sys.stdin.read()
`)
	cmd.Dir, cmd.Env, cmd.Stderr = b.dir, append(b.environ, "GUARDED="+g.at("/stored/x"), "CLOUDS=aws google impersonated azure anthropic openai"), os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = in.Close(); _ = cmd.Wait() })
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "ready\n" {
		t.Fatalf("got %q, %v", line, err)
	}
	places := map[string][]byte{"its memory": memory(t, cmd.Process.Pid), "its traffic": []byte(traffic.String())}
	if places["its environment"], err = os.ReadFile(fmt.Sprintf("/proc/%d/environ", cmd.Process.Pid)); err != nil {
		t.Fatal(err)
	}
	if err := filepath.WalkDir(b.dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		places["its files"] = append(places["its files"], text...)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	g.one(t)
	a.finds(t, places, strings.Split(key, "\n")[2]) // all keys begin with the same bytes in the first line
}

// finds searches for every credential that the hosts got, and for the tokens that were exchanged and what the other systems gave for
// them. It also searches for a known text in each place, to prove that the
// search works.
func (a *abroad) finds(t *testing.T, places map[string][]byte, key string) {
	t.Helper()
	a.findsNothingAbroad(t, places)
	secrets := map[string]string{
		"key": canary, "basic": base64.StdEncoding.EncodeToString([]byte("bot:" + canary)), "certificate's key": key,
		"id of the AWS key": awsKey, "AWS key": awsSecret, "session": awsSession,
	}
	for _, r := range a.host.taken() {
		if token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer "); ok && r.URL.Path == "/token" {
			secrets["token"] = token
		}
		if r.URL.Path == "/s3/echo" {
			secrets["signature"] = r.Header.Get("Authorization")[len(r.Header.Get("Authorization"))-64:]
		}
	}
	if len(secrets) != 8 {
		t.Fatal("the hosts got no token, or no signature")
	}
	there := map[string]string{"its memory": password, "its traffic": "CONNECT ", "its environment": password, "its files": strings.Repeat("*", len(canary))}
	for name, content := range places {
		for what, secret := range secrets {
			if bytes.Contains(content, []byte(secret)) {
				t.Errorf("the %s is in %s", what, name)
			}
		}
		if !bytes.Contains(content, []byte(there[name])) {
			t.Errorf("%s has not even %q: it is not being searched", name, there[name])
		}
	}
	t.Logf("searched %d MiB of memory and %d KiB of traffic", len(places["its memory"])>>20, len(places["its traffic"])>>10)
}

// findsNothingAbroad searches for every token that the far side got, and every secret that it gave.
func (a *abroad) findsNothingAbroad(t *testing.T, places map[string][]byte) {
	t.Helper()
	tokens, results := a.far.secrets()
	if len(tokens) != len(farSystems) || len(results) != len(farSystems)+3 { // an AWS key has three parts, and one system gives two tokens
		t.Fatalf("the far side got %d tokens and gave %d secrets", len(tokens), len(results))
	}
	for name, content := range places {
		for _, one := range slices.Concat(tokens, results) {
			if bytes.Contains(content, []byte(one)) {
				t.Errorf("%s is in %s", one, name)
			}
		}
	}
}

package testkit

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// aroundSite is the nginx configuration around a site. It keeps all files in one folder.
const aroundSite = `daemon off;
master_process off;
pid nginx.pid;
error_log stderr notice;
events {}
http {
    access_log off;
    client_body_temp_path tmp; proxy_temp_path tmp; fastcgi_temp_path tmp; uwsgi_temp_path tmp; scgi_temp_path tmp;
    include site.conf;
}
`

// Nginx starts nginx with the files in its folder, of which site.conf is the content of its http block. It returns once nginx
// listens, and nginx ends with the test.
func Nginx(t testing.TB, files map[string][]byte) {
	t.Helper()
	path, err := exec.LookPath("nginx")
	if err != nil {
		path = "/usr/sbin/nginx" // not in the PATH of an ordinary user
	}
	dir := t.TempDir()
	files["nginx.conf"] = []byte(aroundSite)
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	log := &Buffer{}
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), path, "-p", dir, "-c", "nginx.conf", "-e", "stderr")
	says, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatalf("starting nginx, which devstack/deps.sh test installs: %v", err)
	}
	listens, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		once := sync.OnceFunc(func() { close(listens) })
		lines := bufio.NewScanner(says)
		for lines.Scan() {
			_, _ = log.Write(append(lines.Bytes(), '\n'))
			if strings.Contains(lines.Text(), "nginx/") { // nginx logs its version once it listens
				once()
			}
		}
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-ended
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("nginx says:\n%s", log.String())
		}
	})
	select {
	case <-listens:
	case <-ended:
		t.Fatal("nginx ended at once")
	}
}

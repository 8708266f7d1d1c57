package main

import (
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// TestDevInARepository runs `brevet dev` in a repository that has a folder .brevet with links and settings.
func TestDevInARepository(t *testing.T) {
	t.Parallel()
	repository, elsewhere := t.TempDir(), t.TempDir()
	theirs, victim := filepath.Join(repository, ".brevet"), filepath.Join(elsewhere, "precious")
	for path, text := range map[string]string{
		victim: "precious",
		filepath.Join(theirs, "postgres", "postgresql.auto.conf"): "listen_addresses = '*'\n",
		filepath.Join(theirs, "api.address"):                      "0.0.0.0:0\n",
		filepath.Join(theirs, "brevet.yaml"):                      "listen: 0.0.0.0:0\nconsole: {listen: '0.0.0.0:0'}\n",
	} {
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"lock", "postgres.log", "vault.log", "env.json"} {
		if err := os.Symlink(victim, filepath.Join(theirs, name)); err != nil {
			t.Fatal(err)
		}
	}
	launchIn(t, repository, nil, nil, "dev", "--state", ".brevet").finish(t).want(t, 1, "did not make this folder")

	dev := launchIn(t, repository, nil, nil, "dev")
	dev.waitFor(t, dev.out, "brevet catalog apply")
	dir := variable(exportsOf(launchIn(t, repository, nil, nil, "dev", "env").finish(t)), "BREVET_DEV_STATE")
	if want := filepath.Join(os.Getenv("XDG_STATE_HOME"), "brevet", "dev") + "/"; !strings.HasPrefix(dir, want) {
		t.Errorf("got the state folder %s, want one below %s", dir, want)
	}
	launchIn(t, elsewhere, nil, nil, "dev", "env").finish(t).want(t, 1, "no stack runs in")
	dev.signal(t, syscall.SIGTERM)
	dev.finish(t).want(t, 0, "the folder .brevet here is not used", "it still holds keys", "delete it", "the state stays in "+dir)

	// The same stack later. Settings that somebody wrote into its files open no port to the network.
	for name, text := range map[string]string{"api.address": "0.0.0.0:0\n", "brevet.yaml": "listen: 0.0.0.0:0\nconsole: {listen: '0.0.0.0:0'}\npeople: {issuer: 'http://0.0.0.0:0'}\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	again := launchIn(t, repository, nil, nil, "dev")
	again.waitFor(t, again.out, "brevet catalog apply")
	if config, err := os.ReadFile(filepath.Join(dir, "brevet.yaml")); err != nil || strings.Contains(string(config), "0.0.0.0") {
		t.Errorf("got %v and\n%s\nwant no address of the network", err, config)
	}
	for _, one := range listeners(t, dir) {
		if !strings.HasPrefix(one, "127.0.0.1:") {
			t.Errorf("a process of the stack listens on %s", one)
		}
	}
	again.signal(t, syscall.SIGTERM)
	again.finish(t).want(t, 0)
	if text, err := os.ReadFile(victim); err != nil || string(text) != "precious" {
		t.Errorf("got %q, %v in the file that links lead to, want it unchanged", text, err)
	}
	if info, err := os.Stat(victim); err != nil || info.Mode().Perm() != 0o644 {
		t.Errorf("got %v, %v, want the mode unchanged", info.Mode(), err)
	}
}

// A repository with variables for a shell must not bring the key that proves who made a state folder.
func TestStateHomeInARepositoryIsRefused(t *testing.T) {
	t.Parallel()
	repository, link := t.TempDir(), filepath.Join(t.TempDir(), "link")
	inside := filepath.Join(repository, "deep", "inside")
	if err := errors.Join(os.MkdirAll(inside, 0o700), os.Mkdir(filepath.Join(repository, ".git"), 0o700), os.Symlink(repository, link)); err != nil {
		t.Fatal(err)
	}
	for _, variables := range [][]string{
		{"XDG_STATE_HOME=" + repository},
		{"XDG_STATE_HOME=" + repository + "/none/yet"},
		{"XDG_STATE_HOME=" + link + "/none"},
		{"XDG_STATE_HOME=" + inside},
		{"XDG_STATE_HOME=" + inside + "/../.."},
		{"XDG_STATE_HOME=", "HOME=" + repository},
	} {
		for _, work := range []string{repository, link, inside} {
			for _, command := range [][]string{{"dev"}, {"dev", "env"}, {"dev", "login", "alice"}, {"dev", "--state", t.TempDir()}} {
				launchIn(t, work, nil, variables, command...).finish(t).want(t, 1, "the state of stacks would be in", "in the working folder", "Set XDG_STATE_HOME")
			}
		}
	}
	if found, err := filepath.Glob(repository + "/*/brevet"); err != nil || len(found) > 0 {
		t.Errorf("got %q, %v, want nothing made there", found, err)
	}
	launchIn(t, t.TempDir(), nil, []string{"XDG_STATE_HOME=" + repository}, "dev", "env").finish(t).want(t, 1, "no stack runs in")
}

// exportsOf returns the variables that `brevet dev env` printed.
func exportsOf(printed result) (all []string) {
	for _, pair := range exports.FindAllStringSubmatch(printed.out, -1) {
		all = append(all, pair[1]+"="+pair[2])
	}
	return all
}

// listeners returns the addresses on which the processes of a stack listen, as the kernel lists them.
func listeners(t *testing.T, dir string) (all []string) {
	t.Helper()
	var sockets []string
	found := running(t, dir)
	for _, one := range append(found, parents(t, found)...) {
		pid, _, _ := strings.Cut(one, ":")
		links, _ := filepath.Glob("/proc/" + pid + "/fd/*")
		for _, link := range links {
			if target, err := os.Readlink(link); err == nil {
				sockets = append(sockets, target)
			}
		}
	}
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		text, err := os.ReadFile(table)
		if err != nil {
			continue // no IPv6
		}
		for line := range strings.Lines(string(text)) {
			field := strings.Fields(line)
			if len(field) < 10 || field[3] != "0A" || !slices.Contains(sockets, "socket:["+field[9]+"]") {
				continue
			}
			address, port, _ := strings.Cut(field[1], ":")
			ip, err := hex.DecodeString(address)
			number, wrong := strconv.ParseUint(port, 16, 16)
			if err != nil || wrong != nil {
				t.Fatalf("reading %s: %q", table, line)
			}
			for part := range slices.Chunk(ip, 4) { // words of this machine's order; tests run on little-endian machines
				slices.Reverse(part)
			}
			all = append(all, fmt.Sprintf("%s:%d", net.IP(ip), number))
		}
	}
	if len(all) < 6 { // PostgreSQL, Vault, the broker, the console, the provider, the API
		t.Fatalf("got only the listeners %q", all)
	}
	return all
}

// parents returns the parents of processes.
func parents(t *testing.T, of []string) (all []string) {
	t.Helper()
	for _, one := range of {
		pid, _, _ := strings.Cut(one, ":")
		stat, err := os.ReadFile("/proc/" + pid + "/stat")
		if _, rest, ok := strings.Cut(string(stat), ") "); err == nil && ok {
			all = append(all, strings.Fields(rest)[1])
		}
	}
	return all
}

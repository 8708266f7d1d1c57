// Package docs_test runs every command that README.md and docs show, against the stack that `brevet dev` keeps up: each block of
// shell twice in a row, in the order of its document, in one shell. `make docs-run` runs it.
//
// It must never pass over a block in silence: one that does not run says in the document why not, and is counted here.
package docs_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

const root = "../.."

const (
	startWithin    = 90 * time.Second
	documentWithin = 60 * time.Second
)

// notRun is how many blocks of a document do not run. Each has its reason in the line before it. Find a way to run a new block
// before you count it here.
var notRun = map[string]int{
	"README.md":             2,  // make demo, make test
	"docs/audit.md":         1,  // pushes to systems of others
	"docs/audit-search.md":  1,  // needs a task with calls
	"docs/catalogue.md":     1,  // a second admin
	"docs/coding-agents.md": 3,  // calls models
	"docs/credentials.md":   4,  // configures clouds, and engines of Vault for them
	"docs/deploy.md":        12, // Docker Compose
	"docs/egress.md":        4,  // calls GitHub, installs from npm, runs containers
	"docs/performance.md":   3,  // measures for minutes
	"docs/scale.md":         2,  // measures for a minute, needs the source
	"docs/runtimes.md":      4,  // a gateway for a sandbox, Docker, Firecracker
}

// Every block of shell works as it stands in the document, and again when it is pasted once more.
func TestDocumentedCommandsRun(t *testing.T) {
	stack := startStack(t)
	ran := 0
	for _, path := range documents(t) {
		if path == githubGuide {
			continue // TestGitHubGuideRuns runs it, with a GitHub
		}
		text, err := os.ReadFile(filepath.Join(root, path))
		if err != nil {
			t.Fatal(err)
		}
		blocks, skipped, err := parse(string(text))
		if err != nil {
			t.Errorf("%s: %v", path, err)
			continue
		}
		if skipped != notRun[path] {
			t.Errorf("%s: %d blocks do not run, and notRun has %d", path, skipped, notRun[path])
		}
		if len(blocks) > 0 {
			t.Run(path, func(t *testing.T) { stack.run(t, path, blocks) })
			ran += len(blocks)
		}
	}
	if ran < 20 {
		t.Errorf("ran %d blocks: they are not being read", ran)
	}
}

// documents are what people read. The README comes first: it is read on a stack that nobody has used.
func documents(t *testing.T) []string {
	t.Helper()
	found := []string{"README.md", "CONTRIBUTING.md", "SECURITY.md"}
	for _, pattern := range []string{"docs/*.md", "examples/*.md", "examples/*/*.md"} {
		paths, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range paths {
			relative, err := filepath.Rel(root, path)
			if err != nil {
				t.Fatal(err)
			}
			found = append(found, relative)
		}
	}
	return found
}

// block is what a person pastes.
type block struct {
	line int
	text string
}

var (
	fence  = regexp.MustCompile("^\\s*```(\\S*)")
	reason = regexp.MustCompile(`^<!-- not run: \S.* -->$`)
)

// parse returns the blocks to run, and counts those that do not. Languages of a shell other than sh are for these.
func parse(text string) (run []block, skipped int, err error) {
	lines := strings.Split(text, "\n")
	for i := 0; i < len(lines); i++ {
		opening := fence.FindStringSubmatch(lines[i])
		if opening == nil {
			continue
		}
		begin := i + 1
		for i++; i < len(lines) && strings.TrimSpace(lines[i]) != "```"; i++ {
		}
		if i == len(lines) {
			return nil, 0, fmt.Errorf("line %d: the block does not end", begin)
		}
		switch opening[1] {
		case "sh":
			run = append(run, block{begin, strings.Join(lines[begin:i], "\n")})
		case "console", "bash", "shell", "zsh":
			if begin < 2 || !reason.MatchString(lines[begin-2]) {
				return nil, 0, fmt.Errorf("line %d: the line before the block does not say <!-- not run: why -->", begin)
			}
			skipped++
		}
	}
	return run, skipped, nil
}

var (
	exitCode = regexp.MustCompile(`# .*\bexit code ([0-9]+)`)
	httpCode = regexp.MustCompile(`# .*\bHTTP [45][0-9][0-9]\b`)
)

// script is the program that pastes each block twice. A comment such as "# exit code 3" or "# HTTP 400" says that the command
// before it fails so; in the tests' shells curl exits with 22 for such an answer.
func script(path string, blocks []block) string {
	var b strings.Builder
	b.WriteString("trap 'echo \"failed: $BASH_COMMAND\" >&2' ERR\n")
	for _, each := range blocks {
		for _, time := range []string{"once", "twice"} {
			fmt.Fprintf(&b, "echo '== %s:%d %s' >&2\n%s\n", path, each.line, time, expecting(each.text))
		}
	}
	return b.String()
}

// expecting has the shell check the exit codes that a block tells of.
func expecting(text string) string {
	lines := strings.Split(text, "\n")
	for i, begin := 0, 0; i < len(lines); i++ {
		if strings.HasSuffix(lines[i], `\`) {
			continue
		}
		want := ""
		if found := exitCode.FindStringSubmatch(lines[i]); found != nil {
			want = found[1]
		} else if httpCode.MatchString(lines[i]) {
			want = "22"
		}
		if want != "" {
			lines[begin] = "got=0; " + lines[begin]
			command, comment, _ := strings.Cut(lines[i], " #")
			lines[i] = command + " || got=$?; test $got = " + want + " #" + comment
		}
		begin = i + 1
	}
	return strings.Join(lines, "\n")
}

// stack is a `brevet dev` that answers.
type stack struct {
	bin, state string
	home       string // XDG_STATE_HOME of the user who runs it
}

// buildBrevet returns a folder with the binary.
func buildBrevet(t *testing.T) string {
	t.Helper()
	folder := t.TempDir()
	build := exec.CommandContext(t.Context(), "go", "build", "-o", filepath.Join(folder, "brevet"), root+"/cmd/brevet")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building brevet: %v\n%s", err, out)
	}
	return folder
}

// startStack builds the binary and runs `brevet dev` until the test ends.
func startStack(t *testing.T) stack {
	t.Helper()
	s := stack{bin: buildBrevet(t), state: filepath.Join(t.TempDir(), "state"), home: t.TempDir()}
	binary := filepath.Join(s.bin, "brevet")
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	dev := exec.CommandContext(ctx, binary, "dev", "--state", s.state)
	dev.Env = append(clean(os.Getenv("HOME"), os.Getenv("PATH")), "XDG_STATE_HOME="+s.home)
	dev.Cancel = func() error { return dev.Process.Signal(syscall.SIGTERM) }
	dev.WaitDelay = 20 * time.Second
	var said bytes.Buffer
	dev.Stderr = &said
	if err := dev.Start(); err != nil {
		cancel()
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { _ = dev.Wait(); close(ended) }()
	t.Cleanup(func() { cancel(); <-ended })
	deadline := time.After(startWithin)
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	answers := func() bool {
		env := exec.CommandContext(t.Context(), binary, "dev", "env", "--state", s.state)
		env.Env = dev.Env
		return env.Run() == nil
	}
	for !answers() {
		select {
		case <-tick.C:
		case <-ended:
			t.Fatalf("brevet dev ended before it served:\n%s", said.String())
		case <-deadline:
			t.Fatalf("brevet dev did not serve within %s", startWithin)
		}
	}
	return s
}

// clean is the environment of somebody who has just logged in.
func clean(home, path string) []string {
	return []string{"HOME=" + home, "PATH=" + path, "TMPDIR=" + os.TempDir(), "LANG=C.UTF-8"}
}

// run pastes the blocks of one document into one shell, with a home and a folder that nobody has used.
func (s stack) run(t *testing.T, path string, blocks []block) {
	home, folder := t.TempDir(), t.TempDir()
	env := append(clean(home, s.bin+":"+os.Getenv("PATH")), "XDG_STATE_HOME="+s.home, "BREVET_DEV_STATE="+s.state)
	runShell(t, documentWithin, script(path, blocks), home, folder, env)
}

// runShell runs a script in a folder and returns what it printed. In its home, curl fails for an answer 4xx or 5xx.
func runShell(t *testing.T, within time.Duration, script, home, folder string, env []string) string {
	t.Helper()
	if err := os.WriteFile(filepath.Join(home, ".curlrc"), []byte("fail-with-body\nsilent\nshow-error\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	shell := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", script)
	shell.Dir, shell.Env = folder, env
	// What a block leaves running in the background goes with it.
	shell.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	shell.Cancel = func() error { return syscall.Kill(-shell.Process.Pid, syscall.SIGKILL) }
	shell.WaitDelay = 5 * time.Second
	var said bytes.Buffer
	shell.Stdout, shell.Stderr = &said, &said
	err := shell.Run()
	if ctx.Err() != nil {
		err = fmt.Errorf("not within %s", within)
	}
	if err != nil {
		t.Errorf("%v; the end of what was printed:\n%s", err, last(said.String(), 3000))
	}
	if left := syscall.Kill(-shell.Process.Pid, syscall.SIGKILL); left == nil {
		t.Error("a block left something running")
	}
	return said.String()
}

func last(text string, bytes int) string {
	return text[max(0, len(text)-bytes):]
}

// A block that is passed over, and a command whose exit code is another one than the document says, are found.
func TestMistakesInDocumentsAreFound(t *testing.T) {
	for name, text := range map[string]string{
		"no reason":    "Text\n```console\nmake dev\n```\n",
		"empty reason": "<!-- not run: -->\n```bash\nmake dev\n```\n",
		"no end":       "```sh\ntrue\n",
	} {
		if run, skipped, err := parse(text); err == nil {
			t.Errorf("%s: got %v and %d, want an error", name, run, skipped)
		}
	}
	for text, want := range map[string]bool{
		"true":                                true,
		"false":                               false,
		"(exit 3)   # exit code 3: why":       true,
		"(exit 4)   # exit code 3: why":       false,
		"true   # exit code 3: why":           false,
		"X=$(exit 22) \\\n  Y=1   # HTTP 400": true,
		"false | true":                        false,
		"echo \"$UNSET\"":                     false,
	} {
		err := exec.CommandContext(t.Context(), "bash", "-euo", "pipefail", "-c", script("x.md", []block{{1, text}})).Run()
		if (err == nil) != want {
			t.Errorf("%s: got %v, want success: %t", text, err, want)
		}
	}
}

package githubapi

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/http/cgi"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"
)

const branch = "main"

// gitPath matches what git asks for: https://github.com/OWNER/NAME, with or without ".git".
var gitPath = regexp.MustCompile(`^/([^/]+)/([^/]+?)(?:\.git)?/(info/refs|git-upload-pack|git-receive-pack)$`)

// gitAsk is a request of git.
type gitAsk struct {
	full  string
	rest  string
	write bool
}

// gitRequest reads a request of git's smart HTTP protocol.
func gitRequest(r *http.Request) (gitAsk, bool) {
	found := gitPath.FindStringSubmatch(r.URL.Path)
	if found == nil {
		return gitAsk{}, false
	}
	service := strings.TrimPrefix(found[3], "info/refs")
	if service == "" {
		service = r.URL.Query().Get("service")
	}
	return gitAsk{found[1] + "/" + found[2], found[3], service == "git-receive-pack"}, true
}

// plain returns an answer for people who use git.
func plain(status int, text string) answer {
	header := http.Header{"Content-Type": {"text/plain; charset=utf-8"}}
	if status == http.StatusUnauthorized {
		header.Set("WWW-Authenticate", `Basic realm="GitHub"`)
	}
	return answer{status, header, []byte(text + "\n")}
}

// backend returns the path of git-http-backend.
var backend = sync.OnceValues(func() (string, error) {
	out, err := exec.CommandContext(context.Background(), "git", "--exec-path").Output()
	if err != nil {
		return "", fmt.Errorf("git --exec-path: %w", err)
	}
	return filepath.Join(strings.TrimSpace(string(out)), "git-http-backend"), nil
})

// serveGit answers a request of git. The user is x-access-token, and the password is an installation token. The caller holds the
// lock.
func (s *Server) serveGit(r *http.Request, ask gitAsk, call *Call) answer {
	need := "read"
	if ask.write {
		need = "write"
	}
	call.Operation = "git " + need
	user, password, ok := r.BasicAuth()
	if !ok || user != "x-access-token" {
		return plain(401, "No anonymous write access.")
	}
	token, err := s.tokenOf(password)
	if err != nil {
		return plain(401, "Invalid username or token. Password authentication is not supported for Git operations.")
	}
	repo := s.repos[strings.ToLower(ask.full)]
	if repo == nil || !token.grant.covers(ask.full) || !allows(token.grant.Permissions, "contents", "read") {
		return plain(404, "Repository not found.")
	}
	if !allows(token.grant.Permissions, "contents", need) {
		return plain(403, "Write access to repository not granted.")
	}
	program, err := backend()
	if err != nil {
		return s.refuse(r, err)
	}
	if err := s.prepare(r.Context(), repo); err != nil {
		return s.refuse(r, err)
	}
	inner := r.Clone(r.Context())
	inner.URL.Path = "/" + repo.full() + ".git/" + ask.rest
	inner.Header.Del("Authorization") // the environment of the backend needs no token
	return recorded(&cgi.Handler{
		Path: program, Root: "/", Dir: s.folder,
		Env: append(gitEnv(s.folder), "GIT_PROJECT_ROOT="+s.folder, "GIT_HTTP_EXPORT_ALL=1", "REMOTE_USER="+user),
	}, inner)
}

func gitEnv(folder string) []string {
	return []string{
		"HOME=" + folder, "GIT_CONFIG_NOSYSTEM=1", "GIT_AUTHOR_NAME=octocat", "GIT_AUTHOR_EMAIL=octocat@github.com",
		"GIT_COMMITTER_NAME=octocat", "GIT_COMMITTER_EMAIL=octocat@github.com",
	}
}

func (s *Server) dir(repo *repository) string {
	return filepath.Join(s.folder, repo.owner, repo.name+".git")
}

// git runs a git command in a repository, and returns its output.
func (s *Server) git(ctx context.Context, repo *repository, input []byte, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "git", args...)
	cmd.Dir = s.dir(repo)
	cmd.Env = append(gitEnv(s.folder), "PATH="+os.Getenv("PATH"), "GIT_INDEX_FILE="+filepath.Join(s.dir(repo), "brevet-index"))
	cmd.Stdin = bytes.NewReader(input)
	out, err := cmd.Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return "", fmt.Errorf("git %s: %w: %s", strings.Join(args, " "), err, exit.Stderr)
	}
	return string(out), err
}

// prepare creates a repository with one commit, unless it exists.
func (s *Server) prepare(ctx context.Context, repo *repository) error {
	ctx = context.WithoutCancel(ctx)
	if _, err := os.Stat(s.dir(repo)); err == nil {
		return nil
	}
	if err := os.MkdirAll(s.dir(repo), 0o700); err != nil {
		return err
	}
	if _, err := s.git(ctx, repo, nil, "init", "-q", "--bare", "--initial-branch="+branch, "."); err != nil {
		return err
	}
	_, err := s.commit(ctx, repo, branch, "README.md", []byte("# "+repo.name+"\n"), "Initial commit")
	return err
}

// commit writes a file, and returns the name of the commit.
func (s *Server) commit(ctx context.Context, repo *repository, to, file string, content []byte, message string) (string, error) {
	blob, err := s.git(ctx, repo, content, "hash-object", "-w", "--stdin")
	if err != nil {
		return "", err
	}
	from := []string{"read-tree", "--empty"}
	parent, noParent := s.git(ctx, repo, nil, "rev-parse", "--verify", "-q", "refs/heads/"+to)
	parent = strings.TrimSpace(parent)
	write := []string{"commit-tree", "-m", message}
	if noParent == nil {
		from, write = []string{"read-tree", parent}, append(write, "-p", parent)
	}
	if _, err := s.git(ctx, repo, nil, from...); err != nil {
		return "", err
	}
	if _, err := s.git(ctx, repo, nil, "update-index", "--add", "--cacheinfo", "100644,"+strings.TrimSpace(blob)+","+file); err != nil {
		return "", err
	}
	tree, err := s.git(ctx, repo, nil, "write-tree")
	if err != nil {
		return "", err
	}
	made, err := s.git(ctx, repo, nil, append(write, strings.TrimSpace(tree))...)
	if err != nil {
		return "", err
	}
	made = strings.TrimSpace(made)
	_, err = s.git(ctx, repo, nil, "update-ref", "refs/heads/"+to, made)
	return made, err
}

// safePath matches paths and branches that git reads as nothing else.
var safePath = regexp.MustCompile(`^[A-Za-z0-9_.][A-Za-z0-9_./ -]*$`)

func safeName(name string) bool {
	return safePath.MatchString(name) && path.Clean(name) == name && !strings.Contains(name, "..")
}

// file describes a file of a repository.
func (s *Server) file(repo *repository, name, sha string, content []byte) map[string]any {
	out := s.example("content-file-response-if-content-is-a-file", repo.owner, repo.name)
	for field, value := range out {
		if text, ok := value.(string); ok {
			out[field] = strings.ReplaceAll(text, "README.md", name)
		}
	}
	out["type"], out["encoding"], out["size"], out["sha"] = "file", "base64", len(content), sha
	out["name"], out["path"], out["content"] = path.Base(name), name, base64.StdEncoding.EncodeToString(content)
	return out
}

func (s *Server) getContents(q *question) (int, any, error) {
	ctx, name, ref := q.r.Context(), q.params["path"], q.r.URL.Query().Get("ref")
	if ref == "" {
		ref = branch
	}
	if err := s.prepare(ctx, q.repo); err != nil {
		return 0, nil, err
	}
	if !safeName(ref) || name != "" && !safeName(name) {
		return 0, nil, errNotFound
	}
	kind, err := s.git(ctx, q.repo, nil, "cat-file", "-t", ref+":"+name)
	if err != nil {
		return 0, nil, errNotFound
	}
	if strings.TrimSpace(kind) == "tree" {
		return s.directory(q, ref, name)
	}
	sha, err := s.git(ctx, q.repo, nil, "rev-parse", ref+":"+name)
	if err != nil {
		return 0, nil, err
	}
	content, err := s.git(ctx, q.repo, nil, "cat-file", "blob", ref+":"+name)
	return 200, s.file(q.repo, name, strings.TrimSpace(sha), []byte(content)), err
}

func (s *Server) directory(q *question, ref, name string) (int, any, error) {
	out, err := s.git(q.r.Context(), q.repo, nil, "ls-tree", "-l", ref+":"+name)
	if err != nil {
		return 0, nil, err
	}
	all := []any{}
	for line := range strings.Lines(out) {
		facts, base, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		fields := strings.Fields(facts) // mode, type, sha, size
		one := s.file(q.repo, path.Join(name, base), fields[2], nil)
		delete(one, "content")
		delete(one, "encoding")
		if fields[1] == "tree" {
			one["type"] = "dir"
		}
		all = append(all, one)
	}
	return 200, all, nil
}

func (s *Server) putContents(q *question) (int, any, error) {
	var ask struct {
		Message string `json:"message"`
		Content string `json:"content"`
		SHA     string `json:"sha"`
		Branch  string `json:"branch"`
	}
	if err := q.read(&ask); err != nil {
		return 0, nil, err
	}
	content, err := base64.StdEncoding.DecodeString(ask.Content)
	if err != nil {
		return 0, nil, &refusal{422, "content is not valid Base64"}
	}
	name, to := q.params["path"], ask.Branch
	if to == "" {
		to = branch
	}
	if !safeName(name) || !safeName(to) {
		return 0, nil, &refusal{422, "path contains a malformed path component"}
	}
	ctx := context.WithoutCancel(q.r.Context())
	if err := s.prepare(ctx, q.repo); err != nil {
		return 0, nil, err
	}
	if _, err := s.git(ctx, q.repo, nil, "rev-parse", "--verify", "-q", "refs/heads/"+to); err != nil {
		return 0, nil, &refusal{404, "Branch " + to + " not found"}
	}
	status := 201
	if old, err := s.git(ctx, q.repo, nil, "rev-parse", "--verify", "-q", to+":"+name); err == nil {
		status = 200
		switch old = strings.TrimSpace(old); ask.SHA {
		case old:
		case "":
			return 0, nil, &refusal{422, "Invalid request.\n\n\"sha\" wasn't supplied."}
		default:
			return 0, nil, &refusal{409, name + " does not match " + ask.SHA}
		}
	}
	made, err := s.commit(ctx, q.repo, to, name, content, ask.Message)
	if err != nil {
		return 0, nil, err
	}
	sha, err := s.git(ctx, q.repo, nil, "rev-parse", to+":"+name)
	if err != nil {
		return 0, nil, err
	}
	out := s.example("file-commit-example-for-creating-a-file", q.repo.owner, q.repo.name)
	one := s.file(q.repo, name, strings.TrimSpace(sha), content)
	delete(one, "content")
	delete(one, "encoding")
	out["content"] = one
	if commit, ok := out["commit"].(map[string]any); ok {
		commit["sha"], commit["message"] = made, ask.Message
		by := map[string]any{"name": q.token.bot(), "email": "octocat@github.com", "date": s.clock().UTC().Format(time.RFC3339)}
		commit["author"], commit["committer"] = by, by
	}
	return status, out, nil
}

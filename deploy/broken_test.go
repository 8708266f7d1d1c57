package deploy_test

import (
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/loader"
	"github.com/compose-spec/compose-go/v2/types"
)

// sound is a deployment that breaks no rule. Each case below breaks it in one way.
const sound = `
name: sound
services:
  db:
    image: docker.io/library/postgres:17.11-bookworm
    user: "999:999"
    read_only: true
    cap_drop: [ALL]
    security_opt: ["no-new-privileges:true"]
    ulimits: {core: 0}
    restart: unless-stopped
    command: ["postgres", "--set=1"]
    environment:
      POSTGRES_PASSWORD_FILE: /run/secrets/pw
    secrets: [pw]
    ports: ["127.0.0.1:5432:5432"]
    volumes: ["./conf:/etc/conf:ro"]
    healthcheck: {test: ["CMD", "pg_isready"], interval: 5s, timeout: 3s, retries: 3}
  job:
    image: ghcr.io/example/job:1.2.3
    user: "1000"
    read_only: true
    cap_drop: [ALL]
    security_opt: ["no-new-privileges:true"]
    ulimits: {core: 0}
    restart: "no"
    depends_on: {db: {condition: service_healthy}}
secrets:
  pw: {file: ./pw}
configs:
  conf: {file: ./conf}
`

func TestSoundDeploymentPassesEveryRule(t *testing.T) {
	p := parse(t, sound)
	for name, check := range rules {
		if found := check(p); len(found) > 0 {
			t.Errorf("rule %q minds a sound deployment: %v", name, found)
		}
	}
}

// broken are the ways to break it, each with the rule that must find it and what that rule must say.
var broken = []struct {
	name, rule, old, new, want string
}{
	{"latest", "images are pinned", "job:1.2.3", "job:latest", `job: ghcr.io/example/job:latest: the tag "latest"`},
	{"no tag", "images are pinned", "job:1.2.3", "job", `the tag "" is not`},
	{"no tag, but a port", "images are pinned", "ghcr.io/example/job:1.2.3", "registry:5000/job", `the tag "" is not`},
	{"major only", "images are pinned", "postgres:17.11-bookworm", "postgres:17", `the tag "17" is not`},
	{"not a digest", "images are pinned", "job:1.2.3", "job:1.2.3@sha256:abc", "is not a digest"},
	{"built as latest", "images are pinned", "image: ghcr.io/example/job:1.2.3", "image: job:latest\n    build: .", "must not be called latest"},

	{"no health check", "services tell their health", `    healthcheck: {test: ["CMD", "pg_isready"], interval: 5s, timeout: 3s, retries: 3}`, "", "db: has no health check"},
	{"disabled", "services tell their health", `test: ["CMD", "pg_isready"], interval: 5s, timeout: 3s, retries: 3`, "disable: true", "db: has no health check"},
	{"none", "services tell their health", `["CMD", "pg_isready"]`, `["NONE"]`, "db: has no health check"},
	{"version", "services tell their health", `"pg_isready"`, `"/brevet", "version"`, "cannot fail"},
	{"true", "services tell their health", `"pg_isready"`, `"/bin/true"`, "cannot fail"},
	{"or true", "services tell their health", `["CMD", "pg_isready"]`, `["CMD-SHELL", "pg_isready || true"]`, "cannot fail"},
	{"no interval", "services tell their health", "interval: 5s, ", "", "leaves interval"},
	{"no restart", "services tell their health", "restart: unless-stopped", "restart: on-failure", "stays down"},

	{"all interfaces", "ports bind to loopback", "127.0.0.1:5432:5432", "5432:5432", `port 5432 is published on ""`},
	{"explicitly all", "ports bind to loopback", "127.0.0.1:5432:5432", "0.0.0.0:5432:5432", `on "0.0.0.0"`},
	{"a LAN address", "ports bind to loopback", "127.0.0.1:5432:5432", "192.168.0.4:5432:5432", `on "192.168.0.4"`},
	{"host network", "ports bind to loopback", `ports: ["127.0.0.1:5432:5432"]`, "network_mode: host", "shares the host's network"},

	{"password in the environment", "no secret in the file", "POSTGRES_PASSWORD_FILE: /run/secrets/pw", "POSTGRES_PASSWORD: hunter2", "POSTGRES_PASSWORD holds a secret"},
	{"token from the shell", "no secret in the file", "POSTGRES_PASSWORD_FILE: /run/secrets/pw", "VAULT_TOKEN:", "VAULT_TOKEN holds a secret"},
	{"URL in the environment", "no secret in the file", "POSTGRES_PASSWORD_FILE: /run/secrets/pw", "DB: postgres://u:pw@db/x", "URL with a password"},
	{"URL on the command line", "no secret in the file", "--set=1", "postgres://u:pw@db/x", "URL with a password"},
	{"token flag", "no secret in the file", "--set=1", "--vault-token=hello", "puts a secret on the command line"},
	{"key in a command", "no secret in the file", "--set=1", "--x=3f9a6b0c4d1e8f7a2b5c9d0e1f2a3b4c", "looks like a key"},
	{"key in the environment", "no secret in the file", "POSTGRES_PASSWORD_FILE: /run/secrets/pw", "X: hvs3CAESIJ8fQk2mPzV0bT1cXwq7RnYd", "looks like a key"},
	{"secret from the environment", "no secret in the file", "pw: {file: ./pw}", "pw: {environment: PW}", "secret pw: does not come from a file"},
	{"inline config", "no secret in the file", "conf: {file: ./conf}", "conf: {content: hello}", "config conf: does not come from a file"},
	{"label", "no secret in the file", "restart: unless-stopped", "restart: unless-stopped\n    labels: {x: \"postgres://u:pw@db/x\"}", "URL with a password"},
	{"build argument", "no secret in the file", "image: ghcr.io/example/job:1.2.3", "image: job:1\n    build: {context: ., args: {TOKEN: hello}}", "puts a secret on the command line"},

	{"writable root", "containers are confined", "read_only: true", "read_only: false", "db: can write to its image"},
	{"capabilities", "containers are confined", "cap_drop: [ALL]", "cap_drop: [NET_RAW]", "db: keeps capabilities"},
	{"capability back", "containers are confined", "cap_drop: [ALL]", "cap_drop: [ALL]\n    cap_add: [SYS_ADMIN]", "db: keeps capabilities"},
	{"privileges", "containers are confined", `security_opt: ["no-new-privileges:true"]`, "", "db: can gain privileges"},
	{"unconfined", "containers are confined", `"no-new-privileges:true"]`, `"no-new-privileges:true", "seccomp:unconfined"]`, "loosens its sandbox"},
	{"privileged", "containers are confined", "read_only: true", "read_only: true\n    privileged: true", "db: is privileged"},
	{"image's user", "containers are confined", `user: "999:999"`, "", "db: runs as root"},
	{"root", "containers are confined", `user: "999:999"`, `user: "0:0"`, "db: runs as root"},
	{"core dumps", "containers are confined", "ulimits: {core: 0}", "", "db: may leave a core"},
	{"host's processes", "containers are confined", "read_only: true", "read_only: true\n    pid: host", "shares the host's processes"},
	{"docker socket", "containers are confined", "./conf:/etc/conf:ro", "/var/run/docker.sock:/var/run/docker.sock:ro", "root on the host"},
	{"writable bind", "containers are confined", "./conf:/etc/conf:ro", "./conf:/etc/conf", "may write to the host's"},

	{"started is not ready", "dependencies wait for success", "service_healthy", "service_started", "job: waits for db to be service_started"},
	{"a job has no health", "dependencies wait for success", "restart: unless-stopped", `restart: "no"`, "not service_completed_successfully"},
}

func TestBrokenDeploymentsAreCaught(t *testing.T) {
	for _, tt := range broken {
		t.Run(tt.name, func(t *testing.T) {
			text := strings.Replace(sound, tt.old, tt.new, 1)
			if text == sound {
				t.Fatalf("the case changes nothing: %q is not in the sound deployment", tt.old)
			}
			found := strings.Join(rules[tt.rule](parse(t, text)), "\n")
			if !strings.Contains(found, tt.want) {
				t.Errorf("rule %q found %q, want it to say %q", tt.rule, found, tt.want)
			}
		})
	}
}

func TestBrokenDockerfilesAreCaught(t *testing.T) {
	const good = "FROM golang:1.26.7-bookworm AS build\nRUN go build \\\n  ./x\nFROM gcr.io/distroless/static@sha256:" +
		"f7f8f729987ad0fdf6b05eeeae94b26e6a0f613bdf46feea7fc40f7bd72953e6\nUSER 65532:65532\nENTRYPOINT [\"/x\"]\n"
	if found := dockerfileFaults(good); len(found) > 0 {
		t.Fatalf("a sound Dockerfile is minded: %v", found)
	}
	tests := []struct{ name, old, new, want string }{
		{"unpinned base", "golang:1.26.7-bookworm", "golang:latest", "not an exact version"},
		{"floating distroless tag", "static@sha256:" + "f7f8f729987ad0fdf6b05eeeae94b26e6a0f613bdf46feea7fc40f7bd72953e6", "static:nonroot", "not an exact version"},
		{"not distroless", "gcr.io/distroless/static@", "docker.io/library/alpine@", "not distroless"},
		{"root", "USER 65532:65532\n", "", "does not end as the user"},
		{"root at the end", "USER 65532:65532", "USER 65532:65532\nUSER root", "does not end as the user"},
		{"shell form", `ENTRYPOINT ["/x"]`, "ENTRYPOINT /x", "needs a shell"},
		{"download", "RUN go build", "ADD https://example.org/x /x\nRUN go build", "downloads"},
		{"secret argument", "RUN go build", "ARG GITHUB_TOKEN\nRUN go build", "secret"},
		{"secret variable", "RUN go build", "ENV DB_PASSWORD=x\nRUN go build", "secret"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			broken := strings.Replace(good, tt.old, tt.new, 1)
			if broken == good {
				t.Fatalf("the case changes nothing: %q is not there", tt.old)
			}
			if found := strings.Join(dockerfileFaults(broken), "\n"); !strings.Contains(found, tt.want) {
				t.Errorf("found %q, want it to say %q", found, tt.want)
			}
		})
	}
}

// The loader itself must be strict: an unknown key is a typo, and a typo is a missing protection.
func TestUnknownKeysAreRefused(t *testing.T) {
	for _, typo := range []string{"readonly: true", "cap-drop: [ALL]", "health_check: {}"} {
		broken := strings.Replace(sound, "restart: unless-stopped", "restart: unless-stopped\n    "+typo, 1)
		if _, err := load(t, "compose.yaml", []byte(broken)); err == nil {
			t.Errorf("a deployment with %q was loaded without an error", typo)
		}
	}
}

func parse(t *testing.T, text string) *types.Project {
	t.Helper()
	p, err := load(t, "compose.yaml", []byte(text))
	if err != nil {
		t.Fatalf("loading: %v", err)
	}
	return p
}

// load reads a compose file as `docker compose` does, without this machine's environment.
func load(t *testing.T, file string, text []byte, profiles ...string) (*types.Project, error) {
	t.Helper()
	return loader.LoadWithContext(t.Context(), types.ConfigDetails{
		WorkingDir:  "..",
		ConfigFiles: []types.ConfigFile{{Filename: file, Content: text}},
		Environment: types.Mapping{},
	}, func(o *loader.Options) {
		o.SetProjectName("brevet", false)
		o.Profiles = profiles
	})
}

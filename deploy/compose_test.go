// Package deploy_test checks the deployment: images are pinned, containers are confined, and no file in git holds a secret. A
// test also shows that every rule finds a deployment that breaks it.
package deploy_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/types"
)

func deployment(t *testing.T, profiles ...string) *types.Project {
	t.Helper()
	p, err := load(t, "docker-compose.yml", read(t, "../docker-compose.yml"), profiles...)
	if err != nil {
		t.Fatalf("loading docker-compose.yml: %v", err)
	}
	return p
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestDeploymentKeepsEveryRule(t *testing.T) {
	p := deployment(t, "setup")
	want := []string{"bootstrap", "brevet", "openbao", "postgres", "spire-agent", "spire-entries", "spire-server"}
	if got := p.ServiceNames(); !slices.Equal(got, want) {
		t.Fatalf("services: got %v, want %v", got, want)
	}
	for name, check := range rules {
		t.Run(name, func(t *testing.T) {
			for _, fault := range check(p) {
				t.Error(fault)
			}
		})
	}
}

// Without the setup profile nothing that needs admin rights is started.
func TestLaterStartsNeedNoAdminRights(t *testing.T) {
	p := deployment(t)
	if got, want := p.ServiceNames(), []string{"brevet", "openbao", "postgres", "spire-agent", "spire-server"}; !slices.Equal(got, want) {
		t.Errorf("services: got %v, want %v", got, want)
	}
}

func TestServicesWaitForWhatTheyNeed(t *testing.T) {
	p := deployment(t, "setup")
	for name, needs := range map[string][]string{
		"brevet":        {"bootstrap", "openbao", "postgres", "spire-agent"},
		"bootstrap":     {"openbao", "postgres"},
		"spire-agent":   {"spire-server"},
		"spire-entries": {"spire-server"},
	} {
		got := p.Services[name].GetDependencies()
		slices.Sort(got)
		if !slices.Equal(got, needs) {
			t.Errorf("%s waits for %v, want %v", name, got, needs)
		}
	}
}

// With audit_log_enabled the SPIRE server resolves the process that calls its admin socket. A caller in another pid namespace has
// the process id 0 there, and all its calls fail.
func TestSPIREServerClientsShareItsPIDNamespace(t *testing.T) {
	if !regexp.MustCompile(`(?m)^\s*audit_log_enabled\s*=\s*true$`).Match(read(t, "spire/server.conf")) {
		t.Fatal("the SPIRE server keeps no audit log")
	}
	callers := 0
	for name, s := range deployment(t, "setup").Services {
		if name == "spire-server" || !slices.ContainsFunc(s.Volumes, func(v types.ServiceVolumeConfig) bool { return v.Source == "spire-server-admin" }) {
			continue
		}
		callers++
		if s.Pid != "service:spire-server" {
			t.Errorf("%s calls the SPIRE server's admin socket with pid: %q, want service:spire-server", name, s.Pid)
		}
	}
	if callers == 0 {
		t.Error("no service calls the admin socket: the test does not see it")
	}
}

// A container that holds a secret it does not need is a second place to steal it from.
func TestEachServiceSeesOnlyItsOwnSecrets(t *testing.T) {
	p := deployment(t, "setup")
	want := map[string][]string{
		"brevet":        {"database-broker-url"},
		"postgres":      {"postgres-key", "postgres-owner-password"},
		"openbao":       {"openbao-bootstrap-token", "openbao-key", "openbao-operator-password", "openbao-seal-key"},
		"spire-server":  {"spire-root-key"},
		"spire-agent":   {"spire-agent-key"},
		"spire-entries": nil,
		"bootstrap":     {"database-auditor-password", "database-broker-password", "database-owner-url", "openbao-bootstrap-token"},
	}
	for name, s := range p.Services {
		var got []string
		for _, secret := range s.Secrets {
			got = append(got, secret.Source)
		}
		slices.Sort(got)
		if !slices.Equal(got, want[name]) {
			t.Errorf("%s sees %v, want %v", name, got, want[name])
		}
	}
}

// mounts returns the paths in a service's container at which our files are mounted.
func mounts(p *types.Project, service string) []string {
	s := p.Services[service]
	var places []string
	for _, secret := range s.Secrets {
		places = append(places, "/run/secrets/"+secret.Source)
	}
	for _, config := range s.Configs {
		places = append(places, config.Target)
	}
	for _, volume := range s.Volumes {
		places = append(places, volume.Target)
	}
	for _, line := range s.Tmpfs {
		place, _, _ := strings.Cut(line, ":")
		places = append(places, place)
	}
	return places
}

var absolutePath = regexp.MustCompile(`(?:^|[\s"'=:])(?:unix://|file://)?(/(?:etc|run|var|tmp|openbao)/[^\s"',?]+)`)

// A configured path without a mount is found here, and not at the first start.
func TestConfiguredPathsAreMounted(t *testing.T) {
	p := deployment(t, "setup")
	for service, files := range map[string][]string{
		"brevet":       {"brevet.yaml"},
		"openbao":      {"openbao/openbao.hcl"},
		"spire-server": {"spire/server.conf"},
		"spire-agent":  {"spire/agent.conf"},
		"bootstrap":    nil,
		"postgres":     nil,
	} {
		var text strings.Builder
		text.WriteString(strings.Join(p.Services[service].Command, "\n"))
		for _, file := range files {
			text.WriteString("\n" + string(read(t, file)))
		}
		places := mounts(p, service)
		paths := absolutePath.FindAllStringSubmatch(text.String(), -1)
		if len(paths) == 0 {
			t.Errorf("%s: no path is found in its configuration: the test does not see it", service)
		}
		for _, m := range paths {
			if !slices.ContainsFunc(places, func(place string) bool { return m[1] == place || strings.HasPrefix(m[1], place+"/") }) {
				t.Errorf("%s: nothing is mounted at %s", service, m[1])
			}
		}
	}
}

func TestMountedFilesAreInTheRepository(t *testing.T) {
	for name, config := range deployment(t, "setup").Configs {
		path := filepath.Join("..", strings.TrimPrefix(filepath.ToSlash(config.File), "../"))
		if strings.Contains(config.File, "secrets/") {
			continue // made by make-secrets.sh: TestScriptCreatesEveryMountedSecret
		}
		if _, err := os.Stat(path); err != nil {
			t.Errorf("config %s: %v", name, err)
		}
	}
}

// SPIRE identifies brevet by the user it runs as: the entry, the image and the deployment must name the same one.
func TestBrevetIsAttestedAsTheUserItRunsAs(t *testing.T) {
	var data struct {
		Entries []struct {
			SPIFFEID  string `json:"spiffe_id"`
			ParentID  string `json:"parent_id"`
			Selectors []struct{ Type, Value string }
		}
	}
	if err := json.Unmarshal(read(t, "spire/entries.json"), &data); err != nil {
		t.Fatal(err)
	}
	if len(data.Entries) != 1 || len(data.Entries[0].Selectors) != 1 {
		t.Fatalf("got %+v, want one entry with one selector", data)
	}
	entry := data.Entries[0]
	uid := strings.TrimPrefix(entry.Selectors[0].Value, "uid:")
	if got := deployment(t).Services["brevet"].User; entry.Selectors[0].Type != "unix" || got != uid+":"+uid {
		t.Errorf("brevet runs as %s, and its entry selects %+v", got, entry.Selectors)
	}
	if user := dockerfileUser(string(read(t, "Dockerfile"))); user != uid+":"+uid {
		t.Errorf("the image runs as %s, and its entry selects uid %s", user, uid)
	}
	if want := "spiffe://acme.example/spire/agent/x509pop/compose-host"; entry.ParentID != want {
		t.Errorf("parent: got %s, want %s", entry.ParentID, want)
	}
}

func TestOneTrustDomainEverywhere(t *testing.T) {
	for file, want := range map[string]string{
		"spire/server.conf":  `trust_domain = "acme.example"`,
		"spire/agent.conf":   `trust_domain      = "acme.example"`,
		"spire/entries.json": `"spiffe://acme.example/brevet"`,
		"brevet.yaml":        "- name: acme.example",
	} {
		if !strings.Contains(string(read(t, file)), want) {
			t.Errorf("%s does not say %q", file, want)
		}
	}
}

func TestPostgresTakesNoConnectionWithoutTLS(t *testing.T) {
	for line := range strings.Lines(string(read(t, "postgres/pg_hba.conf"))) {
		fields := strings.Fields(line)
		if len(fields) == 0 || strings.HasPrefix(fields[0], "#") {
			continue
		}
		if kind, method := fields[0], fields[len(fields)-1]; (kind != "local" && kind != "hostssl") || method != "scram-sha-256" {
			t.Errorf("pg_hba.conf lets in %q", strings.TrimSpace(line))
		}
	}
}

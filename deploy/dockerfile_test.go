package deploy_test

import (
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestDockerfile(t *testing.T) {
	for _, fault := range dockerfileFaults(string(read(t, "Dockerfile"))) {
		t.Error(fault)
	}
}

// The builder receives nothing that could hold a secret or state.
func TestBuildContextHoldsNoSecrets(t *testing.T) {
	var lines []string
	for line := range strings.Lines(string(read(t, "Dockerfile.dockerignore"))) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			lines = append(lines, line)
		}
	}
	if len(lines) == 0 || lines[0] != "*" {
		t.Fatalf("the build context is not empty to begin with: %v", lines)
	}
	// The last matching pattern wins, so the patterns that exclude files must come after those that include them.
	if out, in := slices.Index(lines, "deploy/"), lastLetIn(lines); out < in {
		t.Errorf("deploy/ is left out in line %d, but line %d lets files in again", out, in)
	}
}

func lastLetIn(lines []string) (last int) {
	for i, line := range lines {
		if strings.HasPrefix(line, "!") {
			last = i
		}
	}
	return last
}

// The files that the binary embeds must reach the builder, or the image cannot be built.
func TestBuildContextHoldsWhatIsEmbedded(t *testing.T) {
	ignore := string(read(t, "Dockerfile.dockerignore"))
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", "-f",
		`{{with .Module}}{{if .Main}}{{range $.EmbedFiles}}{{.}}{{"\n"}}{{end}}{{end}}{{end}}`, "../cmd/brevet").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	files := strings.Fields(string(out))
	if len(files) < 2 {
		t.Fatalf("saw %d embedded files: the list is not being read", len(files))
	}
	for _, file := range files {
		pattern := "!**/*" + filepath.Ext(file)
		if filepath.Ext(file) == "" {
			pattern = "!**/" + filepath.Base(file)
		}
		if !strings.Contains(ignore, pattern+"\n") {
			t.Errorf("%s is embedded, but Dockerfile.dockerignore has no %s", file, pattern)
		}
	}
}

// The image holds the binary that `make reproducible` compares: it is built with the same flags.
func TestImageIsBuiltLikeTheBinary(t *testing.T) {
	makefile, dockerfile := string(read(t, "../Makefile")), string(read(t, "Dockerfile"))
	for _, want := range [][2]string{
		{"CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)'", "ENV CGO_ENABLED=0 GOFLAGS=-trimpath"},
		{"LDFLAGS := -s -w\n", "go build -ldflags '-s -w' "},
	} {
		if !strings.Contains(makefile, want[0]) || !strings.Contains(dockerfile, want[1]) {
			t.Errorf("got other flags than %q in the Makefile and %q in the Dockerfile", want[0], want[1])
		}
	}
}

// instructions returns the instructions of a Dockerfile, with continued lines joined and without comments.
func instructions(text string) (all [][2]string) {
	var kept []string
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(strings.TrimSpace(line), "#") {
			kept = append(kept, line)
		}
	}
	for line := range strings.Lines(strings.ReplaceAll(strings.Join(kept, ""), "\\\n", " ")) {
		if verb, rest, ok := strings.Cut(strings.TrimSpace(line), " "); ok {
			all = append(all, [2]string{strings.ToUpper(verb), strings.TrimSpace(rest)})
		}
	}
	return all
}

// dockerfileUser returns the user that the last stage runs as.
func dockerfileUser(text string) (user string) {
	for _, in := range instructions(text) {
		switch in[0] {
		case "FROM":
			user = ""
		case "USER":
			user = in[1]
		}
	}
	return user
}

func dockerfileFaults(text string) (found []string) {
	var base, entrypoint string
	for _, in := range instructions(text) {
		switch in[0] {
		case "FROM":
			base = strings.Fields(in[1])[0]
			if err := checkImage(base); err != nil {
				found = append(found, err.Error())
			}
		case "ENTRYPOINT":
			entrypoint = in[1]
		case "ADD":
			found = append(found, "ADD downloads or unpacks what nobody checked: "+in[1])
		case "ARG", "ENV":
			if secretName.MatchString(in[1]) {
				found = append(found, in[0]+" leaves a secret in the image: "+in[1])
			}
		}
	}
	if !strings.HasPrefix(base, "gcr.io/distroless/static") {
		found = append(found, "the last stage is not distroless: "+base)
	}
	if user := dockerfileUser(text); user != "65532:65532" {
		found = append(found, "the image does not end as the user 65532: "+user)
	}
	if !strings.HasPrefix(entrypoint, "[") {
		found = append(found, "ENTRYPOINT needs a shell that is not there: "+entrypoint)
	}
	return found
}

package deploy_test

import (
	"fmt"
	"maps"
	"net"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/compose-spec/compose-go/v2/types"
)

// A rule checks a whole deployment and returns one sentence for each fault.
type rule func(*types.Project) []string

var rules = map[string]rule{
	"images are pinned":             pinnedImages,
	"services tell their health":    healthChecks,
	"ports bind to loopback":        loopbackPorts,
	"no secret in the file":         noSecrets,
	"containers are confined":       confined,
	"dependencies wait for success": dependencies,
}

var (
	exactTag = regexp.MustCompile(`^v?[0-9]+\.[0-9]+(\.[0-9]+)?(-[a-z0-9.]+)?$`)
	digest   = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)
)

// checkImage returns an error for an image reference that is not pinned. Only an exact version or a digest names one image.
func checkImage(image string) error {
	name, sum, pinned := strings.Cut(image, "@")
	if pinned {
		if !digest.MatchString(sum) {
			return fmt.Errorf("%s: %q is not a digest", image, sum)
		}
		return nil
	}
	tag := name[strings.LastIndex(name, "/")+1:]
	if _, tag, _ = strings.Cut(tag, ":"); !exactTag.MatchString(tag) {
		return fmt.Errorf("%s: the tag %q is not an exact version", image, tag)
	}
	return nil
}

func pinnedImages(p *types.Project) (found []string) {
	for name, s := range p.Services {
		switch {
		case s.Image == "":
			found = append(found, name+": names no image")
		case s.Build != nil:
			if strings.HasSuffix(s.Image, ":latest") || !strings.Contains(s.Image, ":") {
				found = append(found, name+": what is built here must not be called latest")
			}
		default:
			if err := checkImage(s.Image); err != nil {
				found = append(found, name+": "+err.Error())
			}
		}
	}
	return found
}

// once reports whether a service is a job that runs once.
func once(s types.ServiceConfig) bool { return s.Restart == "no" }

// cannotFail matches commands that succeed whatever state a service is in.
var cannotFail = regexp.MustCompile(`^(true|:|echo\b.*|exit 0|.*\b(version|--version|-v|help|--help)|.*\|\| *true)$`)

func healthChecks(p *types.Project) (found []string) {
	for name, s := range p.Services {
		if once(s) {
			continue
		}
		h := s.HealthCheck
		switch {
		case h == nil || h.Disable || len(h.Test) < 2 || h.Test[0] == "NONE":
			found = append(found, name+": has no health check")
		case cannotFail.MatchString(strings.TrimPrefix(strings.Join(h.Test[1:], " "), "/bin/")):
			found = append(found, name+": its health check cannot fail")
		case h.Interval == nil || h.Timeout == nil || h.Retries == nil:
			found = append(found, name+": its health check leaves interval, timeout or retries to chance")
		}
		if s.Restart != "unless-stopped" && s.Restart != "always" {
			found = append(found, name+": stays down after a crash")
		}
	}
	return found
}

func loopbackPorts(p *types.Project) (found []string) {
	for name, s := range p.Services {
		for _, port := range s.Ports {
			if ip := net.ParseIP(port.HostIP); ip == nil || !ip.IsLoopback() {
				found = append(found, fmt.Sprintf("%s: port %d is published on %q", name, port.Target, port.HostIP))
			}
		}
		if s.NetworkMode == "host" {
			found = append(found, name+": shares the host's network, so all its ports are published")
		}
	}
	return found
}

var (
	secretName  = regexp.MustCompile(`(?i)(password|passwd|secret|token|credential|private_?key|api_?key|pgpass)`)
	secretFlag  = regexp.MustCompile(`(?i)(?:^|\s)--?[a-z-]*(password|secret|token|key)[a-z-]*[= ]\S+`)
	highEntropy = regexp.MustCompile(`[A-Za-z0-9+_]{28,}`)
)

func noSecrets(p *types.Project) (found []string) {
	for name, s := range p.Services {
		for key, value := range s.Environment {
			found = append(found, inText(name+": environment "+key, ptr(value))...)
			if secretName.MatchString(key) && !strings.HasSuffix(key, "_FILE") {
				found = append(found, name+": environment "+key+" holds a secret instead of naming its file")
			}
		}
		for _, word := range words(s) {
			found = append(found, inText(name+": command", word)...)
			for _, flag := range secretFlag.FindAllString(word, -1) {
				if flag = strings.TrimSpace(flag); !namesFile(flag) {
					found = append(found, name+": "+flag+" puts a secret on the command line")
				}
			}
		}
		if len(s.EnvFiles) > 0 {
			found = append(found, name+": env_file puts secrets into the environment")
		}
	}
	for name, s := range p.Secrets {
		if s.File == "" || s.Environment != "" || s.Content != "" {
			found = append(found, "secret "+name+": does not come from a file")
		}
	}
	for name, c := range p.Configs {
		if c.File == "" {
			found = append(found, "config "+name+": does not come from a file")
		}
	}
	return found
}

// words returns all texts of a service's commands and those that anyone can inspect.
func words(s types.ServiceConfig) []string {
	all := slices.Concat([]string(s.Entrypoint), []string(s.Command))
	if s.HealthCheck != nil {
		all = append(all, s.HealthCheck.Test...)
	}
	if s.Build != nil {
		for key, value := range s.Build.Args {
			all = append(all, "--"+key+"="+ptr(value))
		}
	}
	for _, value := range s.Labels {
		all = append(all, value)
	}
	return all
}

// namesFile reports whether a flag names a file, or a key by its name, and does not hold the secret itself.
func namesFile(flag string) bool {
	name, _, _ := strings.Cut(flag, "=")
	return strings.HasSuffix(name, "-file") || name == "--signing-key"
}

func inText(where, text string) (found []string) {
	for word := range strings.FieldsSeq(text) {
		if u, err := url.Parse(word); err == nil && u.User != nil {
			if _, has := u.User.Password(); has {
				found = append(found, where+" holds a URL with a password")
			}
		}
	}
	for _, run := range highEntropy.FindAllString(text, -1) {
		if strings.ContainsAny(run, "0123456789") {
			found = append(found, where+" holds something that looks like a key")
		}
	}
	return found
}

func ptr(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

func confined(p *types.Project) (found []string) {
	for name, s := range p.Services {
		user, _, _ := strings.Cut(s.User, ":")
		for wrong, is := range map[string]bool{
			"can write to its image":          !s.ReadOnly,
			"keeps capabilities":              !slices.Equal(s.CapDrop, []string{"ALL"}) || len(s.CapAdd) > 0,
			"can gain privileges":             !slices.Contains(s.SecurityOpt, "no-new-privileges:true"),
			"loosens its sandbox":             slices.ContainsFunc(s.SecurityOpt, unconfined),
			"is privileged":                   s.Privileged,
			"runs as root, or as whom it may": user == "" || user == "0" || user == "root",
			"may leave a core with secrets":   s.Ulimits["core"] == nil || s.Ulimits["core"].Single != 0 || s.Ulimits["core"].Hard != 0,
			"shares the host's processes":     s.Pid == "host" && name != "spire-agent",
			"shares the host's IPC":           s.Ipc == "host",
		} {
			if is {
				found = append(found, name+": "+wrong)
			}
		}
		for _, v := range s.Volumes {
			if strings.HasSuffix(v.Source, "docker.sock") {
				found = append(found, name+": has Docker's socket, so it is root on the host")
			}
			if v.Type == types.VolumeTypeBind && !v.ReadOnly {
				found = append(found, name+": may write to the host's "+v.Source)
			}
		}
	}
	return found
}

func unconfined(option string) bool { return strings.HasSuffix(option, "unconfined") }

func dependencies(p *types.Project) (found []string) {
	for _, name := range slices.Sorted(maps.Keys(p.Services)) {
		for on, d := range p.Services[name].DependsOn {
			want := types.ServiceConditionHealthy
			if once(p.Services[on]) {
				want = types.ServiceConditionCompletedSuccessfully
			}
			if d.Condition != want {
				found = append(found, fmt.Sprintf("%s: waits for %s to be %s, not %s", name, on, d.Condition, want))
			}
		}
	}
	return found
}

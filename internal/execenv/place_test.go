package execenv

import (
	"os"
	"path/filepath"
	"testing"

	"go.yaml.in/yaml/v4"
)

// TestKubeconfigIsYAML checks that the configuration for kubectl is valid YAML whatever the name of the folder.
func TestKubeconfigIsYAML(t *testing.T) {
	dir := filepath.Join(t.TempDir(), `a: "b" #c`)
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	to, err := newKubeconfig(filepath.Join(dir, "token"), filepath.Join(dir, "config"), "")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(dir, "config"))
	if err != nil {
		t.Fatal(err)
	}
	var parsed struct {
		Users []struct {
			User struct {
				TokenFile string `yaml:"tokenFile"`
			}
		}
	}
	if err := yaml.Unmarshal(text, &parsed); err != nil || len(parsed.Users) != 1 || parsed.Users[0].User.TokenFile != dir+"/token" {
		t.Errorf("got %s (%v), want the path of the token in it; the program is told %v", text, err, to.variables())
	}
}

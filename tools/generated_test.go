package tools_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestGeneratedIsCurrent generates again and compares: a description that was edited without its code, or code that
// was edited by hand, fails here.
func TestGeneratedIsCurrent(t *testing.T) {
	for _, tc := range []struct{ folder, file string }{
		{"../openapi", "types.gen.go"},
		{"../server", "routes.gen.go"},
	} {
		t.Run(tc.folder, func(t *testing.T) {
			fresh := filepath.Join(t.TempDir(), tc.file)
			cmd := exec.CommandContext(t.Context(), "go", "tool", "oapi-codegen",
				"-config", filepath.Join(tc.folder, "codegen.yaml"), "-o", fresh, "../openapi/openapi.yaml")
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("generating: %v\n%s", err, out)
			}
			want, err := os.ReadFile(fresh)
			if err != nil {
				t.Fatal(err)
			}
			got, err := os.ReadFile(filepath.Join(tc.folder, tc.file))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), string(got)); diff != "" {
				t.Errorf("%s/%s is not what go generate makes (-want +got):\n%s", tc.folder, tc.file, diff)
			}
		})
	}
}

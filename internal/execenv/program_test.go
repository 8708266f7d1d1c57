package execenv_test

import (
	"os"
	"strings"
	"testing"

	"github.com/brevet-dev/brevet/internal/execenv"
)

// TestProgramBehindAGatewayGetsNoIdentityVariables checks that a program behind a gateway gets no variable that leads to the
// identity of its sandbox, such as the folder with its key.
func TestProgramBehindAGatewayGetsNoIdentityVariables(t *testing.T) {
	for _, name := range []string{"SPIFFE_ENDPOINT_SOCKET", "BREVET_SVID", "SVID_DIR", "BREVET_DEV_STATE"} {
		t.Setenv(name, "to-be-hidden")
	}
	with, without := execenv.WithoutIdentity(os.Environ()), os.Environ()
	if hidden := strings.Join(with, "\n"); strings.Contains(hidden, "to-be-hidden") {
		t.Errorf("got %q", hidden)
	}
	if len(without) < len(with)+4 {
		t.Errorf("got %d variables with a gateway and %d without", len(with), len(without))
	}
}

package execenv_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/brevet-dev/brevet/internal/execenv"
)

func TestGitAttributes(t *testing.T) {
	got, err := execenv.ReadGitAttributes(strings.NewReader("protocol=https\nhost=h:8443\npath=/acme/api.git/\nwwwauth[]=Basic\nwwwauth[]=Bearer a=b\n\npath=after the end\n"))
	if err != nil {
		t.Fatal(err)
	}
	params, err := got.Fill([]string{"repo={path}", "host={host}", "plain=x"})
	if want := "[repo=acme/api host=h:8443 plain=x]"; err != nil || fmt.Sprint(params) != want {
		t.Errorf("got %v, %v, want %s", params, err, want)
	}
	if _, err := (execenv.GitAttributes{}).Fill([]string{"host={host}"}); err == nil {
		t.Error("got no error for a host that is not named")
	}
}

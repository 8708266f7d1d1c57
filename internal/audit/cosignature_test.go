package audit_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/brevet-dev/brevet/internal/audit"
)

// publicCheckpoint is a checkpoint of a certificate log in public use, with the cosignatures of four witnesses and the key
// that one of them publishes. The specification's own example names no key.
const (
	publicCheckpoint = `arche2025h1.staging.ct.transparency.dev
1432088532
U7WM79jrzyhGZ5/GUBTpM7NzwdyfFx61t3RovgcC4Ro=

— arche2025h1.staging.ct.transparency.dev zTM8sQAAAZ5W0WdjBAMARjBEAiBjW5IQf9pvsYLfQFX6hoGREPMHbdQ3urbllzalApkptQIgIpwtEroeW2BXaHAI4kJXFbon5Ch9MNL5zRNZ55lvGt0=
— arche2025h1.staging.ct.transparency.dev ui8GwCF1+kWqZrxGdhj4aX3gcw7XUlXQQabg/27lefwhUkzbC3NygNI75MdhL1bfTW9g8Ei59RA23oHP7Ry1k3ZFWwQ=
— transparency.dev/DEV:witness-little-garden 2AQqhwAAAABqEiEgzgFIqqhbUoDwjMWE6UP8nd8/KYTzwZ2rhIgcqoXHAwVkjZr4AscylP3v7sEodkRAErumC2q44vdgJY096st5BQ==
— witness1.smartit.nu/witness1 pIyCDwAAAABqEiEghIp82KWebrw7/oHQwlTAm3g2RKS4+eebl8eO0WH+/iEcxZ75W3u5hNI7TOQtmJbqmNWVuE0tgh0XwzdZsDsUAQ==
— remora.n621.de 2net5wAAAABqEiEgPlfF3V06o0Y+fHM+J5J9s27wgxxcOVSpZ/2g/KSiXCg9DEZI+aVCIobWX9sXTynk5XeU/zZ0WBxtqB0DrAWfBw==
— witness.stagemole.eu Z/euoAAAAABqEiEgw0i+7g2ENfDAWHmtRzCfKTHSDwYDJA2NmKeGi9Y8FtEyOUvVr+AJmIY/2TUFucgKi7lI7cUiOvKFYe/TmN9DAg==
`
	remora  = "remora.n621.de+da77ade7+BOvN63jn/bLvkieywe8R6UYAtVtNbZpXh34x7onlmtw2"
	smartit = "witness1.smartit.nu/witness1+a48c820f+BPSFWg9G6KPiO7QPryYO5Xq4oYJJ+kAvLKLSimDhoxMO"
)

func cosigner(t *testing.T, key string) *audit.Cosigner {
	t.Helper()
	c, err := audit.ParseCosigner(key)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestPublicWitnessCosignaturesVerify(t *testing.T) {
	first, second := cosigner(t, remora), cosigner(t, smartit)
	want := time.Date(2026, 5, 23, 21, 50, 24, 0, time.UTC)
	names, last, err := audit.Cosigned([]byte(publicCheckpoint), first, second)
	slices.Sort(names)
	if err != nil || !slices.Equal(names, []string{first.Name(), second.Name()}) || !last.Equal(want) {
		t.Errorf("got %q, %s, %v, want both at %s", names, last, err, want)
	}
	at := strings.Index(publicCheckpoint, "— witness1")
	line, err := first.Cosignature([]byte(publicCheckpoint[:at]), []byte(publicCheckpoint[at:]))
	if err != nil || !strings.HasPrefix(line, "— remora.n621.de 2net5") || !strings.Contains(publicCheckpoint, line) {
		t.Errorf("got the line %q, %v", line, err)
	}
	if names, _, err := audit.Cosigned([]byte(publicCheckpoint)); len(names) > 0 || err != nil {
		t.Errorf("got %q, %v when nobody is known, want nobody", names, err)
	}
}

func TestInvalidCosignaturesAreRejected(t *testing.T) {
	w := cosigner(t, remora)
	for name, change := range map[string][2]string{
		"another size": {"1432088532", "1432088533"},
		"another time": {"2net5wAAAABqEiEg", "2net5wAAAABqEiEh"},
		"a bit":        {"AWfBw==", "AWfBg=="},
		"cut off":      {"2net5wAAAABqEiEgPlfF3V06o0Y+fHM+J5J9s27wgxxcOVSpZ/2g/KSiXCg9DEZI+aVCIobWX9sXTynk5XeU/zZ0WBxtqB0DrAWfBw==", "2net5wAAAAA="},
	} {
		changed := strings.Replace(publicCheckpoint, change[0], change[1], 1)
		if changed == publicCheckpoint {
			t.Fatalf("%s: nothing is changed", name)
		}
		if names, _, err := audit.Cosigned([]byte(changed), w); !errors.Is(err, audit.ErrCosignature) {
			t.Errorf("%s: got %q, %v, want %v", name, names, err, audit.ErrCosignature)
		}
	}
	body, _, _ := strings.Cut(publicCheckpoint, "— witness1")
	for name, lines := range map[string]string{"none": "", "another's": "— x AAAA\n", "no line": "yes\n"} {
		if _, err := w.Cosignature([]byte(body), []byte(lines)); !errors.Is(err, audit.ErrCosignature) {
			t.Errorf("%s: got %v, want %v", name, err, audit.ErrCosignature)
		}
	}
	if _, _, err := audit.Cosigned([]byte("x"), w); !errors.Is(err, audit.ErrCheckpoint) {
		t.Errorf("got %v, want %v", err, audit.ErrCheckpoint)
	}
}

func TestInvalidWitnessKeysAreRejected(t *testing.T) {
	for name, key := range map[string]string{
		"nothing":        "",
		"no name":        "+da77ade7+BOvN63jn/bLvkieywe8R6UYAtVtNbZpXh34x7onlmtw2",
		"another name":   "remora.n621.dx+da77ade7+BOvN63jn/bLvkieywe8R6UYAtVtNbZpXh34x7onlmtw2",
		"a space":        "remora n621.de+da77ade7+BOvN63jn/bLvkieywe8R6UYAtVtNbZpXh34x7onlmtw2",
		"another id":     "remora.n621.de+da77ade8+BOvN63jn/bLvkieywe8R6UYAtVtNbZpXh34x7onlmtw2",
		"in upper case":  "remora.n621.de+DA77ADE7+BOvN63jn/bLvkieywe8R6UYAtVtNbZpXh34x7onlmtw2",
		"cut off":        "remora.n621.de+da77ade7+BOvN63jn/bLvkieywe8R6UYAtVtNbZpXh34x7onlmtw=",
		"a log's":        "TEST+7997405c+AQcC+FTVKf0jlTdHDY3rbevmnKxxPjigCXlVtGe6RIr6",
		"no base64":      "remora.n621.de+da77ade7+***",
		"a private one":  "PRIVATE+KEY+x+00000000+AAAA",
		"nothing but id": "remora.n621.de+da77ade7",
	} {
		if _, err := audit.ParseCosigner(key); !errors.Is(err, audit.ErrCosigner) {
			t.Errorf("%s: got %v, want %v", name, err, audit.ErrCosigner)
		}
	}
}

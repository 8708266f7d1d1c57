package repo_test

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
)

var (
	bomFile     = flag.String("sbom", "", "file to write a CycloneDX bill of materials of the binary to")
	noticesFile = flag.String("notices", "", "file to write the licences of everything in the binary to, word for word")
)

// part is what the binary is made of besides our own code.
type part struct {
	name, version, purl string
	digest              [2]string // its name and value
	licences            []string  // by their names in SPDX
	text                string
}

// licences tells texts of licences by words that each of them has and no other. None of their names is ours to make up: they are
// those of SPDX.
var licences = []struct {
	name     string
	has, not *regexp.Regexp
}{
	{"AGPL", regexp.MustCompile(`GNU AFFERO GENERAL PUBLIC LICENSE`), nil},
	{"LGPL", regexp.MustCompile(`GNU (LESSER|LIBRARY) GENERAL PUBLIC LICENSE`), nil},
	{"GPL", regexp.MustCompile(`GNU GENERAL PUBLIC LICENSE`), nil},
	{"BUSL", regexp.MustCompile(`(?i)business source licen[sc]e`), nil},
	{"SSPL", regexp.MustCompile(`(?i)server side public licen[sc]e`), nil},
	{"Commons-Clause", regexp.MustCompile(`(?i)commons clause`), nil},
	{"Elastic", regexp.MustCompile(`(?i)elastic licen[sc]e`), nil},
	{"Apache-2.0", regexp.MustCompile(`Apache License,?\s+(?://\s*)?Version 2\.0`), nil},
	{"MPL-2.0", regexp.MustCompile(`(?i)mozilla public license,? (version|v\.) 2\.0`), nil},
	{"MIT", regexp.MustCompile(`Permission is hereby granted, free of charge, to any person\s+obtaining\s+a copy`), nil},
	{"BSD-3-Clause", regexp.MustCompile(`Redistributions of source code must retain[\s\S]*Neither the names? of`), nil},
	{"BSD-2-Clause", regexp.MustCompile(`Redistributions of source code must retain`), regexp.MustCompile(`Neither the names? of`)},
	{"ISC", regexp.MustCompile(`Permission to use, copy, modify, and(/or)? distribute this software for any\s+purpose with or without fee is hereby granted, provided`), nil},
	{"0BSD", regexp.MustCompile(`Permission to use, copy, modify, and/or distribute this software for\s+any\s+purpose with or without fee is hereby granted\.`), nil},
	{"CC0-1.0", regexp.MustCompile(`CC0 1\.0 Universal`), nil},
	{"Unlicense", regexp.MustCompile(`This is free and unencumbered software released into the public domain`), nil},
}

// allowed are those under which something may be in what we give to others, as part of a work under Apache-2.0.
var allowed = []string{"Apache-2.0", "MPL-2.0", "MIT", "BSD-3-Clause", "BSD-2-Clause", "ISC", "0BSD", "CC0-1.0", "Unlicense"}

func licencesIn(text string) (found []string) {
	for _, l := range licences {
		if l.has.MatchString(text) && (l.not == nil || !l.not.MatchString(text)) {
			found = append(found, l.name)
		}
	}
	return found
}

// mayShip is an error for a part under a licence that is unknown, or that asks more of who gets the binary than ours does.
func mayShip(p part) error {
	if len(p.licences) == 0 {
		return fmt.Errorf("%s %s: no licence that is known", p.name, p.version)
	}
	for _, name := range p.licences {
		if !slices.Contains(allowed, name) {
			return fmt.Errorf("%s %s is under %s", p.name, p.version, name)
		}
	}
	return nil
}

// Everything in the binary may be given to others: all that is linked, Go itself, and what the console's pages load.
func TestLicences(t *testing.T) {
	parts := append(linked(t), vendored(t)...)
	if len(parts) < 40 {
		t.Fatalf("saw %d parts: they are not being read", len(parts))
	}
	for _, p := range parts {
		if err := mayShip(p); err != nil {
			t.Error(err)
		}
	}
	if !slices.ContainsFunc(parts, func(p part) bool { return p.name == "htmx" && slices.Equal(p.licences, []string{"0BSD"}) }) {
		t.Error("the console's own files are not among them")
	}
	writeTo(t, *bomFile, billOf(t, parts))
	writeTo(t, *noticesFile, noticesOf(parts))
}

// A licence that forbids what we do is seen, whatever else stands beside it, and so is one that nobody knows.
func TestLicencesThatForbidDistributionAreFound(t *testing.T) {
	const mit = "Permission is hereby granted, free of charge, to any person obtaining a copy\n"
	for text, want := range map[string]string{
		"":                              "no licence that is known",
		"You may look at it on Sundays": "no licence that is known",
		"                    GNU AFFERO GENERAL PUBLIC LICENSE\n   Version 3":  "AGPL",
		"GNU GENERAL PUBLIC LICENSE\nVersion 2":                                "GPL",
		"GNU LESSER GENERAL PUBLIC LICENSE":                                    "LGPL",
		"License text copyright (c) 2020 MariaDB\nBusiness Source License 1.1": "BUSL",
		mit + "Business Source License 1.1":                                    "BUSL",
		mit + "\"Commons Clause\" License Condition v1.0":                      "Commons-Clause",
		"Server Side Public License\nVERSION 1":                                "SSPL",
	} {
		if err := mayShip(part{name: "x", licences: licencesIn(text)}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %s", text, err, want)
		}
	}
	if err := mayShip(part{name: "x", licences: licencesIn(mit)}); err != nil {
		t.Error(err)
	}
}

type goModule struct {
	Path, Version, Dir, Sum string
	Main                    bool
	Replace                 *goModule
}

// linked are Go, and the modules of all packages of the binary.
func linked(t *testing.T) []part {
	t.Helper()
	root, err := os.ReadFile(filepath.Join(runtime.GOROOT(), "LICENSE")) //nolint:staticcheck // the one that runs this is the one that builds
	if err != nil {
		t.Fatal(err)
	}
	version := strings.TrimPrefix(runtime.Version(), "go")
	parts := []part{{name: "std", version: version, purl: "pkg:golang/std@" + version, text: string(root), licences: licencesIn(string(root))}}
	cmd := exec.CommandContext(t.Context(), "go", "list", "-deps", "-json=Module", "./cmd/brevet")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux")
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	seen := map[string]bool{}
	for decoder := json.NewDecoder(strings.NewReader(string(out))); ; {
		var pkg struct{ Module *goModule }
		if err := decoder.Decode(&pkg); errors.Is(err, io.EOF) {
			return parts
		} else if err != nil {
			t.Fatalf("reading go list: %v", err)
		}
		m := pkg.Module
		if m == nil || m.Main || seen[m.Path] {
			continue
		}
		seen[m.Path] = true
		if m.Replace != nil {
			m = m.Replace
		}
		text := licenceFiles(t, m.Dir)
		parts = append(parts, part{
			name: m.Path, version: m.Version, purl: "pkg:golang/" + m.Path + "@" + m.Version, digest: [2]string{"go:sum", m.Sum}, licences: licencesIn(text), text: text,
		})
	}
}

var licenceFile = regexp.MustCompile(`(?i)^(licen[cs]e|copying|notice|copyright|patents)`)

// licenceFiles are all that a module says about its licence, in its top folder.
func licenceFiles(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for _, entry := range entries {
		if entry.IsDir() || !licenceFile.MatchString(entry.Name()) || strings.HasSuffix(entry.Name(), ".go") {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, entry.Name()))
		if err != nil {
			t.Fatal(err)
		}
		all.Write(append(text, '\n'))
	}
	return all.String()
}

// vendored are the files of others that the console serves, as the list beside them says. Console's own tests hold the files to
// their digests.
func vendored(t *testing.T) (parts []part) {
	t.Helper()
	text, err := os.ReadFile("internal/console/static/vendor/LICENSES.md")
	if err != nil {
		t.Fatal(err)
	}
	title := regexp.MustCompile(`^(\S[^\n]*?) (\d[\d.]*)\b[^\n]*\((https://[^)]+)\)\n`)
	for section := range strings.SplitSeq("\n"+string(text), "\n# ") {
		if strings.TrimSpace(section) == "" {
			continue
		}
		said := title.FindStringSubmatch(section)
		if said == nil {
			t.Fatalf("a section says no name, version and address: %.80q", section)
		}
		name := strings.ToLower(strings.ReplaceAll(said[1], " ", "-"))
		parts = append(parts, part{
			name: name, version: said[2], purl: "pkg:generic/" + name + "@" + said[2], digest: [2]string{"source", said[3]},
			licences: licencesIn(section), text: section,
		})
	}
	return parts
}

// billOf is CycloneDX 1.6 in JSON. It has neither a time nor a number of its own, so that the same sources make the same bill.
func billOf(t *testing.T, parts []part) string {
	t.Helper()
	type object = map[string]any
	components := []object{}
	for _, p := range parts {
		var names []object
		for _, name := range p.licences {
			names = append(names, object{"license": object{"id": name}})
		}
		component := object{"type": "library", "bom-ref": p.purl, "name": p.name, "version": p.version, "purl": p.purl, "licenses": names}
		if p.digest[1] != "" {
			component["properties"] = []object{{"name": p.digest[0], "value": p.digest[1]}}
		}
		components = append(components, component)
	}
	own := object{"type": "application", "bom-ref": "brevet", "name": "brevet", "licenses": []object{{"license": object{"id": "Apache-2.0"}}}}
	text, err := json.MarshalIndent(object{
		"bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1, "metadata": object{"component": own}, "components": components,
	}, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	return string(text) + "\n"
}

func noticesOf(parts []part) string {
	var all strings.Builder
	for _, p := range parts {
		fmt.Fprintf(&all, "%s %s\n%s\n\n%s\n\n", p.name, p.version, strings.Join(p.licences, ", "), strings.TrimSpace(p.text))
	}
	return all.String()
}

func writeTo(t *testing.T, path, text string) {
	t.Helper()
	if path == "" {
		return
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

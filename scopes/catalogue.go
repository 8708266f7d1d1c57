package scopes

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
)

// The largest catalogue that Load accepts. The limit for a policy file is lower than for a scope file because Cedar's
// parser recurses without a limit: it uses about 2.6 KB of stack for each bracket, so a megabyte of brackets would crash
// the process.
const (
	MaxFiles      = 256
	MaxScopeFile  = 1 << 20  // bytes
	MaxPolicyFile = 64 << 10 // bytes
	MaxScopes     = 10_000
	MaxPolicies   = 10_000
)

// File names are restricted so that the lines of the digest need no quoting.
var fileSyntax = regexp.MustCompile(`^[A-Za-z0-9_-][A-Za-z0-9._-]*(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*$`)

// File is one file of a catalogue: scopes in *.yaml and *.yml, Cedar policies in *.cedar.
type File struct {
	Name string // slash-separated, relative to the catalogue's directory
	Data []byte
}

// Catalogue is one immutable version of all scopes and policies. It is safe for concurrent use.
type Catalogue struct {
	digest     string
	scopes     map[string]*definition
	names      []string // sorted
	policies   []policy // sorted by id
	index      index    // into policies
	schema     string
	thresholds map[string][]int64 // see hint.go
}

// Load builds a catalogue from its files, in any order. If anything is wrong, the error is Problems with every mistake
// found. A policy about a scope that could not be read is not validated: it may look wrong only because of that.
func Load(files []File) (*Catalogue, error) {
	var problems Problems
	files = checkFiles(files, &problems)
	c := &Catalogue{digest: Digest(files), scopes: map[string]*definition{}}
	partial := len(problems) > 0
	var broken []*definition
	for _, f := range files {
		if isScopeFile(f.Name) {
			before := len(problems)
			broken = append(broken, c.readScopes(f, &problems)...)
			partial = partial || len(problems) > before
		} else {
			c.policies = append(c.policies, readPolicies(f, &problems)...)
		}
	}
	for _, d := range broken {
		delete(c.scopes, d.scope.Name)
	}
	c.names = slices.Sorted(maps.Keys(c.scopes))
	slices.SortStableFunc(c.policies, func(a, b policy) int { return strings.Compare(a.ID, b.ID) })
	first := 0
	for i, p := range c.policies {
		if c.policies[first].ID != p.ID {
			first = i
		} else if i > first && p.ID != "" {
			problems.add(p.File, p.Line, "policy @id %q is used twice; the first is at %s:%d", p.ID, c.policies[first].File, c.policies[first].Line)
		}
	}
	if len(problems) == 0 {
		if len(c.scopes) == 0 {
			problems.add("", 0, "the catalogue has no scopes; add a .yaml file with scopes:")
		}
		if len(c.policies) == 0 {
			problems.add("", 0, "the catalogue has no policies, so nothing would be permitted; add a .cedar file")
		}
		if len(c.scopes) > MaxScopes {
			problems.add("", 0, "%d scopes are too many; at most %d", len(c.scopes), MaxScopes)
		}
		if len(c.policies) > MaxPolicies {
			problems.add("", 0, "%d policies are too many; at most %d", len(c.policies), MaxPolicies)
		}
	}
	if len(c.scopes) <= MaxScopes && len(c.policies) <= MaxPolicies {
		c.checkPolicies(&problems, broken, partial)
	}
	if err := problems.err(); err != nil {
		return nil, err
	}
	c.thresholds, c.index = findThresholds(c.policies), newIndex(c.policies)
	return c, nil
}

// LoadFS loads every .yaml, .yml and .cedar file below the root of fsys, as ReadFS finds them.
func LoadFS(fsys fs.FS) (*Catalogue, error) {
	files, err := ReadFS(fsys)
	if err != nil {
		return nil, err
	}
	return Load(files)
}

// ReadFS returns the files of the catalogue below the root of fsys, for Load. It skips example tables (*.test.yaml and
// *.test.yml), which are not part of a catalogue. It also skips directories whose name begins with a dot: a mounted
// Kubernetes ConfigMap keeps a second copy of each file in one.
func ReadFS(fsys fs.FS) ([]File, error) {
	return readFS(fsys, func(name string) bool { return isScopeFile(name) || isPolicyFile(name) })
}

func readFS(fsys fs.FS, wanted func(name string) bool) ([]File, error) {
	var files []File
	err := fs.WalkDir(fsys, ".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && name != "." && strings.HasPrefix(entry.Name(), "."):
			return fs.SkipDir
		case entry.IsDir() || !wanted(name):
			return nil
		case len(files) == MaxFiles:
			return Problems{{What: fmt.Sprintf("more than %d files; merge some", MaxFiles)}}
		}
		data, err := readCapped(fsys, name)
		if err != nil {
			return fmt.Errorf("reading catalogue file %s: %w", name, err)
		}
		files = append(files, File{Name: name, Data: data})
		return nil
	})
	return files, err
}

// readCapped reads up to one byte more than Load allows, so that Load rejects a file that is too large.
func readCapped(fsys fs.FS, name string) ([]byte, error) {
	info, err := fs.Stat(fsys, name)
	if err != nil {
		return nil, err
	}
	// Opening a pipe would block until a writer opens it.
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("not a regular file: %w", fs.ErrInvalid)
	}
	f, err := fsys.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, MaxScopeFile+1))
}

func isScopeFile(name string) bool { return isYAML(name) && !isExampleFile(name) }

// isExampleFile reports whether a file holds example requests. Examples do not change what the catalogue decides, so they
// are not part of it or of its digest.
func isExampleFile(name string) bool {
	return isYAML(name) && path.Ext(strings.TrimSuffix(name, path.Ext(name))) == ".test"
}

func isYAML(name string) bool { return path.Ext(name) == ".yaml" || path.Ext(name) == ".yml" }

func isPolicyFile(name string) bool { return path.Ext(name) == ".cedar" }

// checkFiles returns the files worth parsing, sorted by name.
func checkFiles(files []File, problems *Problems) []File {
	if len(files) > MaxFiles {
		problems.add("", 0, "%d files are too many; at most %d", len(files), MaxFiles)
		return nil
	}
	sorted := slices.SortedFunc(slices.Values(files), func(a, b File) int { return strings.Compare(a.Name, b.Name) })
	var out []File
	for i, f := range sorted {
		limit := MaxScopeFile
		if isPolicyFile(f.Name) {
			limit = MaxPolicyFile
		}
		switch {
		case !fileSyntax.MatchString(f.Name):
			problems.add("", 0, "file name %q may contain only letters, digits and . _ - /, and no part may begin with a dot", f.Name)
		case isExampleFile(f.Name):
			problems.add(f.Name, 0, "is an example table, which is not part of a catalogue; leave it out")
		case !isScopeFile(f.Name) && !isPolicyFile(f.Name):
			problems.add(f.Name, 0, "is neither a scope file (.yaml, .yml) nor a policy file (.cedar); rename or remove it")
		case i > 0 && sorted[i-1].Name == f.Name:
			problems.add(f.Name, 0, "is listed twice")
		case len(f.Data) > limit:
			problems.add(f.Name, 0, "is larger than %d KiB; split it", limit>>10)
		default:
			out = append(out, f)
		}
	}
	return out
}

// readScopes adds the scopes of one file. It returns those with mistakes.
func (c *Catalogue) readScopes(f File, problems *Problems) (broken []*definition) {
	r := &reader{file: f.Name, top: "scopes", problems: problems}
	for _, n := range r.items(f.Data) {
		before := len(*problems)
		d := r.scope(n)
		if d == nil {
			continue
		}
		if len(*problems) > before {
			d.action, d.parents = actionOf(d.scope)
			broken = append(broken, d)
		}
		if first, dup := c.scopes[d.scope.Name]; dup {
			r.at(n, "scope %s is defined twice; the first is at %s:%d", d.scope.Name, first.file, first.line)
			continue
		}
		c.scopes[d.scope.Name] = d
	}
	return broken
}

// Digest returns "sha256:" and the hash that `LC_ALL=C sha256sum FILES... | sha256sum` prints in the catalogue's
// directory. The caller must pass the files sorted by name.
func Digest(files []File) string {
	h := sha256.New()
	for _, f := range files {
		fmt.Fprintf(h, "%x  %s\n", sha256.Sum256(f.Data), f.Name)
	}
	return "sha256:" + hex.EncodeToString(h.Sum(nil))
}

// Digest identifies this version of the catalogue. It is "sha256:" and the SHA-256 of one line per file, sorted by name:
// "<hex sha256 of the file>  <name>\n".
func (c *Catalogue) Digest() string { return c.digest }

// Scope returns a copy of the scope with that name.
func (c *Catalogue) Scope(name string) (*Scope, bool) {
	d, ok := c.scopes[name]
	if !ok {
		return nil, false
	}
	return d.scope.clone(), true
}

// Scopes returns copies of all scopes, sorted by name.
func (c *Catalogue) Scopes() []*Scope {
	out := make([]*Scope, len(c.names))
	for i, name := range c.names {
		out[i] = c.scopes[name].scope.clone()
	}
	return out
}

// Schema returns the Cedar schema that the policies are validated against.
func (c *Catalogue) Schema() string { return c.schema }

package repo_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// loud are the names by which a package gets text of libraries into a log, by the packages that may use them. net/http quotes in
// errors and in logs what servers and clients send (I9).
var loud = map[string]map[string][]string{
	"net/http": {
		"DefaultTransport": {"internal/quiet"}, "DefaultClient": {}, "Get": {}, "Head": {}, "Post": {}, "PostForm": {}, "Transport": {"internal/quiet"},
		// An http.Client without a transport has the default one, and an http.Server without a log has the default one.
		"Client": {}, "Server": {},
	},
	"net/http/httputil":                 {"ReverseProxy": {}},
	"golang.org/x/net/http2":            {"Transport": {}, "Server": {}},
	"log":                               {"SetOutput": {"cmd/brevet"}, "Default": {}, "Printf": {}, "Println": {}, "Print": {}, "New": {"internal/quiet", "internal/httpapi"}},
	"log/slog":                          {"SetDefault": {}, "NewLogLogger": {"internal/quiet"}},
	"google.golang.org/grpc/grpclog":    {"SetLoggerV2": {"cmd/brevet"}},
	"go.opentelemetry.io/otel":          {"SetLogger": {"cmd/brevet"}, "SetErrorHandler": {"cmd/brevet", "internal/app"}},
	"github.com/hashicorp/go-cleanhttp": {"DefaultTransport": {}, "DefaultPooledTransport": {}, "DefaultClient": {}, "DefaultPooledClient": {}},
}

// fields are what a literal of a type must set.
var fields = map[string]string{"Client": "Transport", "Server": "ErrorLog", "ReverseProxy": "ErrorLog"}

// apart are programs and folders that serve tests only, and Vault's own server.
var apart = []string{"internal/testkit", "tests", "tools", "internal/devstack/vaultd", "examples"}

// I9: every transport, client, server and log of the product goes through internal/quiet, which keeps out what the other side has sent.
func TestTransportsAreQuiet(t *testing.T) {
	seen := 0
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (slices.Contains(apart, path) || path != "." && strings.HasPrefix(d.Name(), ".")):
			return filepath.SkipDir
		case d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		seen++
		for _, fault := range loudIn(t, path, nil) {
			t.Error(fault)
		}
		return nil
	})
	if err != nil || seen < 100 {
		t.Fatalf("read %d files, %v", seen, err)
	}
}

// The check itself finds what it has to find.
func TestLoudTransportsAreFound(t *testing.T) {
	for text, want := range map[string]int{
		"var x = &http.Transport{}":                                         1,
		"var x http.Transport":                                              1,
		"var x = new(http.Transport)":                                       1,
		"type x struct{ http.Transport }":                                   1,
		"var x = http.DefaultTransport":                                     1,
		"var x = http.DefaultClient.Do":                                     1,
		"var x = http.Client{Timeout: 1}":                                   1,
		"var x, y = &http.Client{Transport: z}, (*http.Client)(nil)":        0,
		"var x = &http.Server{}":                                            1,
		"var x = quiet.New(&http.Transport{})":                              0,
		"var x = quiet.New(y(&http.Transport{}))":                           1,
		"func f(*http.Transport, *http.Client, *http.Server)":               0,
		"func f() { _, _ = http.Get(u); log.Print(1); slog.SetDefault(l) }": 3,
	} {
		source := "package p\nimport (\"net/http\"; \"log\"; \"log/slog\"; \"github.com/brevet-dev/brevet/internal/quiet\")\n" + text
		if got := loudIn(t, "p/p.go", source); len(got) != want {
			t.Errorf("%s: got %v, want %d faults", text, got, want)
		}
	}
}

// loudIn returns the uses of loud names in a file.
func loudIn(t *testing.T, path string, source any) (faults []string) {
	t.Helper()
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, path, source, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	imported := map[string]string{} // paths by name
	for _, spec := range file.Imports {
		from, _ := strconv.Unquote(spec.Path.Value)
		name := from[strings.LastIndex(from, "/")+1:]
		if spec.Name != nil {
			name = spec.Name.Name
		}
		imported[name] = from
	}
	named := func(e ast.Expr) (from, name string) {
		if selector, ok := e.(*ast.SelectorExpr); ok {
			if pkg, ok := selector.X.(*ast.Ident); ok {
				return imported[pkg.Name], selector.Sel.Name
			}
		}
		return "", ""
	}
	fine := map[ast.Expr]bool{}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr:
			if from, name := named(n.Fun); strings.HasSuffix(from, "/internal/quiet") && name == "New" {
				if of, ok := n.Args[0].(*ast.UnaryExpr); ok {
					if literal, ok := of.X.(*ast.CompositeLit); ok {
						fine[literal.Type] = true
					}
				}
			}
		case *ast.StarExpr: // a pointer makes none
			fine[n.X] = true
		case *ast.CompositeLit:
			_, name := named(n.Type)
			fine[n.Type] = fine[n.Type] || fields[name] != "" && slices.ContainsFunc(n.Elts, func(e ast.Expr) bool {
				pair, ok := e.(*ast.KeyValueExpr)
				key, isName := pair.Key.(*ast.Ident)
				return ok && isName && key.Name == fields[name]
			})
		case *ast.SelectorExpr:
			from, name := named(n)
			if allowed, is := loud[from][name]; is && !fine[n] && !slices.Contains(allowed, filepath.ToSlash(filepath.Dir(path))) {
				faults = append(faults, files.Position(n.Pos()).String()+": "+from+"."+name+": use internal/quiet")
			}
		}
		return true
	})
	return faults
}

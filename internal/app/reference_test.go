package app

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"reflect"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write generated documents again")

const referencePath = "../../docs/configuration.md"

const referenceHead = `# Configuration

` + "`brevet serve --config FILE`" + ` reads one YAML file. Unknown and repeated keys are errors, and all errors are
reported at once. Relative paths are relative to the folder of the file. The file never contains secrets, only paths to
files that hold them. Durations are written as ` + "`30s`, `5m`, `1h`" + `.

[deploy/brevet.yaml](../deploy/brevet.yaml) is a complete example.
`

// TestConfigurationReference checks that the reference matches the structs in config.go, from which it is generated.
func TestConfigurationReference(t *testing.T) {
	want := reference(t)
	if *update {
		if err := os.WriteFile(referencePath, []byte(want), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(referencePath)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Error("docs/configuration.md is not what config.go says: run make generate")
	}
}

func reference(t *testing.T) string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "config.go", nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	structs := map[string]*ast.StructType{}
	for _, decl := range file.Decls {
		gen, ok := decl.(*ast.GenDecl)
		if !ok {
			continue
		}
		for _, spec := range gen.Specs {
			if typ, ok := spec.(*ast.TypeSpec); ok {
				if body, ok := typ.Type.(*ast.StructType); ok {
					structs[typ.Name.Name] = body
				}
			}
		}
	}
	var out strings.Builder
	out.WriteString(referenceHead)
	out.WriteString("\n| key | type | meaning |\n| --- | --- | --- |\n")
	writeFields(t, &out, structs, "Config", "")
	return out.String()
}

func writeFields(t *testing.T, out *strings.Builder, structs map[string]*ast.StructType, name, prefix string) {
	t.Helper()
	for _, field := range structs[name].Fields.List {
		if len(field.Names) == 0 { // its keys are inline
			_, inner := fieldType(field.Type)
			writeFields(t, out, structs, inner, prefix)
			continue
		}
		name, _, _ := strings.Cut(reflect.StructTag(strings.Trim(field.Tag.Value, "`")).Get("yaml"), ",")
		key := prefix + name
		comment := strings.Join(strings.Fields(field.Doc.Text()), " ")
		if comment == "" {
			t.Errorf("%s has no comment", key)
		}
		kind, inner := fieldType(field.Type)
		fmt.Fprintf(out, "| `%s` | %s | %s |\n", key, kind, comment)
		if _, nested := structs[inner]; nested {
			separator := "."
			if kind == "list" {
				separator = "[]."
			}
			writeFields(t, out, structs, inner, key+separator)
		}
	}
}

// fieldType returns the name of a type for readers of YAML, and the struct inside, if any.
func fieldType(expr ast.Expr) (kind, inner string) {
	switch typ := expr.(type) {
	case *ast.StarExpr:
		return fieldType(typ.X)
	case *ast.ArrayType:
		kind, inner := fieldType(typ.Elt)
		if inner == "" {
			return "list of " + kind, ""
		}
		return "list", inner
	case *ast.SelectorExpr:
		return "duration", ""
	case *ast.Ident:
		if strings.HasSuffix(typ.Name, "Config") {
			return "section", typ.Name
		}
		return map[string]string{"string": "string", "int32": "number"}[typ.Name], ""
	default:
		return "", ""
	}
}

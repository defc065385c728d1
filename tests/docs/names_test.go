package docs_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// mostNames is how many names a package exports at the most, methods and fields not counted,
// unless its comment says "names because".
const mostNames = 25

// exportedNames returns the exported names of a file, and its comment on the package.
func exportedNames(file *ast.File) (names []string, doc string) {
	for _, declaration := range file.Decls {
		switch d := declaration.(type) {
		case *ast.FuncDecl:
			if d.Recv == nil {
				names = append(names, d.Name.Name)
			}
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				switch s := spec.(type) {
				case *ast.TypeSpec:
					names = append(names, s.Name.Name)
				case *ast.ValueSpec:
					for _, name := range s.Names {
						names = append(names, name.Name)
					}
				}
			}
		}
	}
	return slices.DeleteFunc(names, func(name string) bool { return !ast.IsExported(name) }), file.Doc.Text()
}

// TestExportedNames: a package that exports many names gives the reason. Generated files are
// not counted.
func TestExportedNames(t *testing.T) {
	names, docs := make(map[string][]string), make(map[string]string)
	err := filepath.WalkDir(filepath.Join("..", "..", "pkg"), func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") || strings.Contains(path, "testdata") {
			return err
		}
		source, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, source, parser.ParseComments)
		if err != nil || ast.IsGenerated(file) {
			return err
		}
		folder := filepath.Dir(path)
		exported, doc := exportedNames(file)
		names[folder] = append(names[folder], exported...)
		docs[folder] += doc
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for folder, list := range names {
		reason := strings.Contains(strings.Join(strings.Fields(docs[folder]), " "), "names because")
		switch {
		case len(list) > mostNames && !reason:
			t.Errorf("%s exports %d names, more than %d: give the reason in its comment, \"names because\"", folder, len(list), mostNames)
		case len(list) <= mostNames && reason:
			t.Errorf("%s exports %d names and gives a reason for more than %d", folder, len(list), mostNames)
		}
		t.Logf("%s: %d", folder, len(list))
	}
}

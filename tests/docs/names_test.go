package docs_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// mostNames is how many names a package exports at the most, methods and fields not counted,
// unless its comment says "names because"; and how many methods a type has that others can call,
// unless its comment says "methods because".
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

// written calls fn with each file of pkg that is neither a test nor generated, with its folder.
func written(t *testing.T, fn func(folder string, file *ast.File)) {
	t.Helper()
	err := filepath.WalkDir(filepath.Join("..", "..", "pkg"), func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") || strings.Contains(path, "testdata") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments)
		if err == nil && !ast.IsGenerated(file) {
			fn(filepath.Dir(path), file)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// checkCount fails when there are too many of what a reason is given for, or a reason for few.
func checkCount(t *testing.T, of, what string, count int, doc string) {
	t.Helper()
	reason := strings.Contains(strings.Join(strings.Fields(doc), " "), what+" because")
	switch {
	case count > mostNames && !reason:
		t.Errorf("%s has %d exported %s, more than %d: give the reason in its comment, \"%s because\"", of, count, what, mostNames, what)
	case count <= mostNames && reason:
		t.Errorf("%s has %d exported %s and gives a reason for more than %d", of, count, what, mostNames)
	}
}

// TestExportedNames: a package that exports many names gives the reason. Generated files are
// not counted.
func TestExportedNames(t *testing.T) {
	names, docs := make(map[string]int), make(map[string]string)
	written(t, func(folder string, file *ast.File) {
		exported, doc := exportedNames(file)
		names[folder] += len(exported)
		docs[folder] += doc
	})
	for folder, count := range names {
		checkCount(t, folder, "names", count, docs[folder])
	}
}

// receiver returns the name of the type that a method is of; "" for a function.
func receiver(f *ast.FuncDecl) string {
	if f.Recv == nil {
		return ""
	}
	typ := f.Recv.List[0].Type
	if pointer, ok := typ.(*ast.StarExpr); ok {
		typ = pointer.X
	}
	if generic, ok := typ.(*ast.IndexExpr); ok {
		typ = generic.X
	}
	name, _ := typ.(*ast.Ident)
	if name == nil {
		return ""
	}
	return name.Name
}

// methodsOf returns how many methods of its own an interface has.
func methodsOf(spec *ast.TypeSpec) (count int) {
	if i, ok := spec.Type.(*ast.InterfaceType); ok {
		for _, field := range i.Methods.List {
			count += len(field.Names)
		}
	}
	return count
}

// TestExportedMethods: a type, exported or not, that has many exported methods gives the reason.
// Those of embedded types are counted there.
func TestExportedMethods(t *testing.T) {
	methods, docs := make(map[string]int), make(map[string]string)
	written(t, func(folder string, file *ast.File) {
		for _, declaration := range file.Decls {
			switch d := declaration.(type) {
			case *ast.FuncDecl:
				if of := receiver(d); of != "" && d.Name.IsExported() {
					methods[folder+"."+of]++
				}
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					if s, ok := spec.(*ast.TypeSpec); ok {
						methods[folder+"."+s.Name.Name] += methodsOf(s)
						docs[folder+"."+s.Name.Name] = d.Doc.Text() + s.Doc.Text()
					}
				}
			}
		}
	})
	for of, count := range methods {
		checkCount(t, of, "methods", count, docs[of])
	}
	if methods[filepath.Join("..", "..", "pkg", "bpfmap")+".Maps"] < 10 {
		t.Error("the methods of bpfmap.Maps are not found")
	}
}

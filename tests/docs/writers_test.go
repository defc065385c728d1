package docs_test

import (
	"go/ast"
	"go/token"
	"slices"
	"strings"
	"testing"
)

// mapField returns the field of the maps that an expression ends in; "" for another.
func mapField(e ast.Expr) string {
	if s, ok := e.(*ast.SelectorExpr); ok && strings.HasPrefix(s.Sel.Name, "Bl") {
		return s.Sel.Name
	}
	return ""
}

// writes returns the map that a call writes to: an argument of bpfmap.Put or bpfmap.Remove, or
// what has a method that writes. Else it is "".
func writes(call *ast.CallExpr) string {
	f, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return ""
	}
	switch f.Sel.Name {
	case "Put", "Update", "Delete", "BatchUpdate", "BatchDelete":
		if name := mapField(f.X); name != "" {
			return name
		}
	case "Remove":
	default:
		return ""
	}
	if from, ok := f.X.(*ast.Ident); ok && from.Name == "bpfmap" && len(call.Args) > 0 {
		return mapField(call.Args[0])
	}
	return ""
}

// TestOneWriter: each map is written by one package. The nodes, which are mapped into memory, are
// known to the one that locks them.
func TestOneWriter(t *testing.T) {
	writers := make(map[string][]string)
	parsed(t, 0, func(name string, _ *token.FileSet, file *ast.File) {
		ast.Inspect(file, func(n ast.Node) bool {
			of := ""
			switch n := n.(type) {
			case *ast.CallExpr:
				of = writes(n)
			case *ast.SelectorExpr:
				if n.Sel.Name == "NodeMu" {
					of = "BlNode"
				}
			}
			if of != "" && !slices.Contains(writers[of], name) {
				writers[of] = append(writers[of], name)
			}
			return true
		})
	})
	for of, packages := range writers {
		if len(packages) > 1 {
			t.Errorf("%s is written by %s", of, strings.Join(packages, " and "))
		}
	}
	for _, of := range []string{"BlNode", "BlNodeId", "BlFrontend", "BlDevice", "BlServiceCidr"} {
		if len(writers[of]) == 0 {
			t.Errorf("who writes %s is not found", of)
		}
	}
}

package docs_test

import (
	"go/ast"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
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
	checkWriters(t, writers, "BlNode", "BlNodeId", "BlFrontend", "BlDevice", "BlServiceCidr")
}

// checkWriters wants each map to have one writer, and those of some to have been found.
func checkWriters(t *testing.T, writers map[string][]string, found ...string) {
	t.Helper()
	for of, list := range writers {
		if len(list) > 1 {
			t.Errorf("%s is written by %s", of, strings.Join(list, " and "))
		}
	}
	for _, of := range found {
		if len(writers[of]) == 0 {
			t.Errorf("who writes %s is not found", of)
		}
	}
}

// TestOneWriterOfPrograms: entries of each map are stored and deleted by one file of the programs.
func TestOneWriterOfPrograms(t *testing.T) {
	call := regexp.MustCompile(`bpf_map_(?:update|delete)_elem\(\s*&(bl_\w+)`)
	writers := make(map[string][]string)
	err := filepath.WalkDir("../../bpf", func(path string, e fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".h") && !strings.HasSuffix(path, ".c") {
			return err
		}
		text, err := os.ReadFile(path)
		for _, m := range call.FindAllStringSubmatch(string(text), -1) {
			if !slices.Contains(writers[m[1]], path) {
				writers[m[1]] = append(writers[m[1]], path)
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	checkWriters(t, writers, "bl_flow", "bl_overflow", "bl_client", "bl_fragment", "bl_udp_peer")
}

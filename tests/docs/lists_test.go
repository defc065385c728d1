package docs_test

import (
	"go/ast"
	"go/token"
	"regexp"
	"testing"
)

// dump matches the functions of netlink, and methods of its handles, that list: the kernel
// interrupts its answer when what they list changes meanwhile.
var dump = regexp.MustCompile(`^(Addr|Chain|Class|Conntrack|Filter|Link|Neigh|Qdisc|Route|Rule)\w*List`)

// TestListsAreWhole: what lists the kernel's objects by netlink does so in a call of
// rtnl.Complete, which repeats interrupted lists. Package rtnl has the common lists.
func TestListsAreWhole(t *testing.T) {
	found := 0
	for _, folder := range []string{"pkg", "cmd"} {
		parsedBelow(t, folder, 0, func(_ string, files *token.FileSet, file *ast.File) {
			var repeated ast.Node
			ast.Inspect(file, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.CallExpr:
					if called(n) == "Complete" {
						repeated = n
					}
				case *ast.SelectorExpr:
					if !dump.MatchString(n.Sel.Name) {
						return true
					}
					found++
					if repeated == nil || n.Pos() > repeated.End() {
						t.Errorf("%s: %s is not in a call of rtnl.Complete", files.Position(n.Pos()), n.Sel.Name)
					}
				}
				return true
			})
		})
	}
	if found < 5 {
		t.Errorf("only %d lists are found", found)
	}
}

// called returns the name of the function or method that is called.
func called(call *ast.CallExpr) string {
	switch f := call.Fun.(type) {
	case *ast.Ident:
		return f.Name
	case *ast.SelectorExpr:
		return f.Sel.Name
	}
	return ""
}

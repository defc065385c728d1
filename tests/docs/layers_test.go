// Package docs_test compares what the documents say with what there is.
package docs_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/beeline-lb/beeline/pkg/config"
)

const module = "github.com/beeline-lb/beeline/"

// layer is a row of the table: a package and those of ours that it imports.
type layer struct {
	name    string
	imports []string
}

var row = regexp.MustCompile("(?m)^\\| `pkg/([a-z0-9/]+)` \\|[^|]*\\| ([^|]*)\\|[^|]*\\|$")

// read returns a file of the repository.
func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// documented returns the table of ARCHITECTURE.md.
func documented(t *testing.T) (layers []layer) {
	t.Helper()
	for _, m := range row.FindAllStringSubmatch(read(t, "ARCHITECTURE.md"), -1) {
		l := layer{name: m[1]}
		if list := strings.TrimSpace(m[2]); list != "" {
			l.imports = strings.Split(list, ", ")
		}
		layers = append(layers, l)
	}
	return layers
}

// parsed calls fn with each file of pkg but tests, and the package that it is of.
func parsed(t *testing.T, mode parser.Mode, fn func(name string, files *token.FileSet, file *ast.File)) {
	t.Helper()
	parsedBelow(t, "pkg", mode, fn)
}

// parsedBelow is parsed with another folder of the repository.
func parsedBelow(t *testing.T, folder string, mode parser.Mode, fn func(name string, files *token.FileSet, file *ast.File)) {
	t.Helper()
	root := filepath.Join("..", "..", folder)
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") || strings.Contains(path, "testdata") {
			return err
		}
		files := token.NewFileSet()
		file, err := parser.ParseFile(files, path, nil, mode)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, filepath.Dir(path))
		if err != nil {
			return err
		}
		fn(name, files, file)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// imported returns what the packages import of ours, by package.
func imported(t *testing.T) map[string][]string {
	t.Helper()
	all := make(map[string][]string)
	parsed(t, parser.ImportsOnly, func(name string, _ *token.FileSet, file *ast.File) {
		all[name] = append(all[name], ours(file)...)
	})
	// What only tests import is no layer: such packages are named after the one they are for.
	maps.DeleteFunc(all, func(name string, _ []string) bool { return strings.HasSuffix(name, "test") })
	for name, imports := range all {
		slices.Sort(imports)
		all[name] = slices.Compact(imports)
	}
	return all
}

// ours returns what a file imports of this module, below pkg/.
func ours(file *ast.File) (names []string) {
	for _, spec := range file.Imports {
		if name, ok := strings.CutPrefix(strings.Trim(spec.Path.Value, `"`), module); ok {
			names = append(names, strings.TrimPrefix(name, "pkg/"))
		}
	}
	return names
}

// TestLayers: ARCHITECTURE.md has every package with what it imports, and each imports only
// what stands above it.
func TestLayers(t *testing.T) {
	have := imported(t)
	above := make(map[string]bool)
	for _, l := range documented(t) {
		imports, found := have[l.name]
		if !found || !slices.Equal(imports, l.imports) {
			t.Errorf("pkg/%s imports %s; ARCHITECTURE.md says %s", l.name, strings.Join(imports, ", "), strings.Join(l.imports, ", "))
		}
		for _, name := range imports {
			if !above[name] {
				t.Errorf("pkg/%s imports pkg/%s, which does not stand above it", l.name, name)
			}
		}
		above[l.name] = true
		delete(have, l.name)
	}
	for name := range have {
		t.Errorf("pkg/%s is not in ARCHITECTURE.md", name)
	}
}

var (
	commandFlag = regexp.MustCompile(`cmd\.Flags\(\)\.\w+\(&\w+, "([a-z-]+)"`)
	flagNamed   = regexp.MustCompile(`--[a-z][a-z0-9-]*`)
)

// agentFlags returns the agent's flags, with dashes.
func agentFlags(t *testing.T) map[string]bool {
	t.Helper()
	set := pflag.NewFlagSet("", pflag.ContinueOnError)
	config.AddFlags(set)
	flags := make(map[string]bool)
	set.VisitAll(func(f *pflag.Flag) { flags["--"+f.Name] = true })
	for _, m := range commandFlag.FindAllStringSubmatch(read(t, "cmd/beeline-agent/command.go"), -1) {
		flags["--"+m[1]] = true
	}
	for _, name := range []string{"--max-flows", "--config", "--masquerade-all", "--cleanup", "--write-config-to"} {
		if !flags[name] {
			t.Errorf("%s is not found", name)
		}
	}
	return flags
}

// TestFlagsNamed: texts of packages name settings by their fields. Only the commands and the
// configuration know the flags.
func TestFlagsNamed(t *testing.T) {
	flags := agentFlags(t)
	parsed(t, 0, func(name string, files *token.FileSet, file *ast.File) {
		if name == "config" || name == "inspect/cli" {
			return
		}
		ast.Inspect(file, func(n ast.Node) bool {
			text, ok := n.(*ast.BasicLit)
			if !ok || text.Kind != token.STRING {
				return true
			}
			for _, flag := range flagNamed.FindAllString(text.Value, -1) {
				if flags[flag] {
					t.Errorf("%s: %s is a flag of the agent: name the field, see pkg/setting", files.Position(text.Pos()), flag)
				}
			}
			return true
		})
	})
}

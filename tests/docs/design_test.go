package docs_test

import (
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/beeline-lb/beeline/tests/pages"
)

// firstPageLines is how long ARCHITECTURE.md may be: ten minutes.
const firstPageLines = 150

var (
	testNamed   = regexp.MustCompile("`((?:Test|Fuzz)[A-Za-z0-9_]+)`")
	folderNamed = regexp.MustCompile(`\b((?:pkg|tests|cmd|tools)/[a-z0-9/-]+)`)
	testFunc    = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)[A-Za-z0-9_]+)\(`)
	mapDefined  = regexp.MustCompile(`\} (bl_[a-z0-9_]+) SEC\("\.maps"\)`)
	mapRow      = regexp.MustCompile("(?m)^\\| `(bl_[a-z0-9_]+)` \\|")
	// agentMapDefined is a key of agentSpecs.
	agentMapDefined = regexp.MustCompile(`(?m)^\t"(bl_[a-z0-9_]+)":`)
)

// designs returns the pages of docs/design by path.
func designs(t *testing.T) map[string]string {
	t.Helper()
	pages := pages.All(t)
	for path := range pages {
		if filepath.Dir(path) != "../../docs/design" {
			delete(pages, path)
		}
	}
	if len(pages) == 0 {
		t.Fatal("docs/design has no pages")
	}
	return pages
}

// sources returns the text of the files below a folder that have one of the endings, by path
// in the repository.
func sources(t *testing.T, folder string, endings ...string) map[string]string {
	t.Helper()
	all := make(map[string]string)
	root := filepath.Join("..", "..")
	err := filepath.WalkDir(filepath.Join(root, folder), func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() || !slices.ContainsFunc(endings, func(e string) bool { return strings.HasSuffix(path, e) }) {
			return nil
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		text, err := os.ReadFile(path)
		all[name] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// testsByFolder returns the names of all tests of the repository.
func testsByFolder(t *testing.T) map[string][]string {
	t.Helper()
	all := make(map[string][]string)
	for _, folder := range []string{"cmd", "pkg", "tests", "tools"} {
		for path, text := range sources(t, folder, "_test.go") {
			for _, m := range testFunc.FindAllStringSubmatch(text, -1) {
				all[filepath.Dir(path)] = append(all[filepath.Dir(path)], m[1])
			}
		}
	}
	return all
}

// TestInvariants: each page of the design ends with its invariants, and each of them names tests
// that there are, with their folders, or says that there is none.
func TestInvariants(t *testing.T) {
	tests := testsByFolder(t)
	for path, text := range designs(t) {
		_, section, _ := strings.Cut(text, "\n## Invariants\n\n| invariant | held by |\n|---|---|\n")
		rows := strings.Split(strings.TrimSuffix(section, "\n"), "\n")
		for _, row := range rows {
			cells := strings.Split(row, " | ")
			if len(cells) != 2 || !strings.HasPrefix(row, "| ") {
				t.Errorf("%s does not end with a table of invariants: %q", path, row)
				continue
			}
			checkHeldBy(t, path, cells[1], tests)
		}
	}
}

// checkHeldBy checks the cell that says which tests hold an invariant.
func checkHeldBy(t *testing.T, path, cell string, tests map[string][]string) {
	t.Helper()
	names := testNamed.FindAllStringSubmatch(cell, -1)
	if len(names) == 0 && !strings.HasPrefix(cell, "no test") {
		t.Errorf("%s names no test: %q", path, cell)
	}
	for _, name := range names {
		if !slices.ContainsFunc(folderNamed.FindAllString(cell, -1), func(folder string) bool {
			return slices.Contains(tests[folder], name[1])
		}) {
			t.Errorf("%s: no folder of %q has %s", path, cell, name[1])
		}
	}
}

// TestTestsNamed: the tests that any document names exist.
func TestTestsNamed(t *testing.T) {
	all := slices.Concat(slices.Collect(maps.Values(testsByFolder(t)))...)
	for path, text := range pages.All(t) {
		for _, name := range testNamed.FindAllStringSubmatch(text, -1) {
			if !slices.Contains(all, name[1]) {
				t.Errorf("%s names %s, which does not exist", path, name[1])
			}
		}
	}
}

// TestFirstPage: who is new reads ARCHITECTURE.md in ten minutes, and it leads to all pages.
func TestFirstPage(t *testing.T) {
	text := read(t, "ARCHITECTURE.md")
	if n := strings.Count(text, "\n"); n > firstPageLines {
		t.Errorf("ARCHITECTURE.md has %d lines, more than %d", n, firstPageLines)
	}
	for path := range designs(t) {
		if name := "docs/design/" + filepath.Base(path); !strings.Contains(text, "]("+name+")") {
			t.Errorf("ARCHITECTURE.md does not lead to %s", name)
		}
	}
}

// TestMaps: each map, of the programs and of agents alone, has a row in a table of the design, and
// each row is of a map.
func TestMaps(t *testing.T) {
	defined := make(map[string]string)
	for path, text := range sources(t, "bpf", ".h", ".c") {
		for _, m := range mapDefined.FindAllStringSubmatch(text, -1) {
			defined[m[1]] = path
		}
	}
	ofPrograms := len(defined)
	const ofAgents = "pkg/bpfmap/agentmaps.go"
	for _, m := range agentMapDefined.FindAllStringSubmatch(read(t, ofAgents), -1) {
		defined[m[1]] = ofAgents
	}
	if ofPrograms < 30 || len(defined) < ofPrograms+3 {
		t.Errorf("found %d maps in the source, %d of them of agents alone", len(defined), len(defined)-ofPrograms)
	}
	for path, text := range designs(t) {
		for _, m := range mapRow.FindAllStringSubmatch(text, -1) {
			if defined[m[1]] == "" {
				t.Errorf("%s has a row of %s, which is no map, or has another row", path, m[1])
			}
			delete(defined, m[1])
		}
	}
	for name, path := range defined {
		t.Errorf("%s of %s is in no table of docs/design", name, path)
	}
}

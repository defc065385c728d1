package docs_test

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/beeline-lb/beeline/pkg/model"
)

// counted is a list of the algorithms that count active connections, and what follows.
var counted = regexp.MustCompile(`counts active (?:ones|connections) \(([^)]*)\)([^.]*)`)

// TestCountedAlgorithms: who is told where connections of sockets are counted is told of all algorithms that do.
func TestCountedAlgorithms(t *testing.T) {
	var want []string
	for _, name := range model.Algorithms() {
		if a, err := model.ParseAlgorithm(name); err != nil {
			t.Fatal(err)
		} else if a.Counts() {
			want = append(want, name)
		}
	}
	for _, name := range []string{"docs/troubleshooting.md", "pkg/inspect/cli/top.go", "pkg/inspect/web/page/index.html"} {
		m := counted.FindStringSubmatch(read(t, name))
		if m == nil {
			t.Errorf("%s: no list is found", name)
			continue
		}
		got := strings.Split(strings.ReplaceAll(m[1], "`", ""), ", ")
		if !slices.Equal(got, want) || !strings.Contains(m[2], "spill-over") {
			t.Errorf("%s names %q%s, want %q and zone spill-over", name, got, m[2], want)
		}
	}
}

package docs_test

import (
	"regexp"
	"strings"
	"testing"
)

var reasonName = regexp.MustCompile(`BL_REASON_[A-Z_]+: +\{Name: "([a-z_]+)"`)

// TestCounters: the page for who looks for a fault explains every counter.
func TestCounters(t *testing.T) {
	names := reasonName.FindAllStringSubmatch(read(t, "pkg/statusmap/reason.go"), -1)
	if len(names) < 20 {
		t.Errorf("found %d counters in the source", len(names))
	}
	_, table, _ := strings.Cut(read(t, "docs/troubleshooting.md"), "## Counters")
	for _, m := range names {
		if !strings.Contains(table, "`"+m[1]+"`") {
			t.Errorf("docs/troubleshooting.md does not explain %s", m[1])
		}
	}
}

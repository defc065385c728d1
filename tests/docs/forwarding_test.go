package docs_test

import (
	"maps"
	"regexp"
	"strings"
	"testing"

	"github.com/beeline-lb/beeline/tests/pages"
)

// forwards is what turns the forwarding of IPv6 on, or of what "beeline verify" names.
var forwards = regexp.MustCompile(`(?:ipv6[./]conf[./]all[./]forwarding|SETTING)(?: ?= ?|: *["']?)1`)

// TestForwardingKeepsRoutes: who is told to have IPv6 forwarded is told of accept_ra before: the kernel
// removes default routes of router advertisements as soon as it forwards, where that is 1.
func TestForwardingKeepsRoutes(t *testing.T) {
	texts := pages.All(t)
	for _, folder := range []string{"charts", "cmd", "examples", "pkg", "tools"} {
		maps.Copy(texts, sources(t, folder, ".go", ".sh", ".tpl", ".yaml"))
	}
	found := 0
	for name, text := range texts {
		at := forwards.FindStringIndex(text)
		if at == nil {
			continue
		}
		found++
		if !strings.Contains(text[:at[0]], "accept_ra=2") {
			t.Errorf("%s has %q without accept_ra=2 before", name, text[at[0]:at[1]])
		}
	}
	if found < 2 {
		t.Errorf("found in %d files", found)
	}
}

package docs_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/beeline-lb/beeline/tests/pages"
)

var (
	link       = regexp.MustCompile(`\]\(([^)#]*)(#[^)]*)?\)`)
	appVersion = regexp.MustCompile(`(?m)^appVersion: (.*)$`)
	imageMade  = regexp.MustCompile(`make image VERSION=(\S+)`)
	heading    = regexp.MustCompile(`(?m)^#+ (.*)$`)
	noAnchor   = regexp.MustCompile(`[^\pL\pN_ -]`)
)

// anchors returns what links to the headings of a document end with, as GitHub makes it.
func anchors(text string) map[string]bool {
	all := make(map[string]bool)
	for _, m := range heading.FindAllStringSubmatch(text, -1) {
		title := noAnchor.ReplaceAllString(strings.ToLower(link.ReplaceAllString(m[1], "")), "")
		all["#"+strings.ReplaceAll(title, " ", "-")] = true
	}
	return all
}

// TestLinks: what a document links to in the repository is there, headings among it.
func TestLinks(t *testing.T) {
	all := pages.All(t)
	for path, text := range all {
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			target := path
			if m[1] != "" {
				target = filepath.Join(filepath.Dir(path), m[1])
			}
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s: %v", path, err)
			} else if other, ok := all[target]; ok && m[2] != "" && !anchors(other)[m[2]] {
				t.Errorf("%s: %s has no heading %s", path, target, m[2])
			}
		}
	}
}

// TestImageOfTheChart: who makes the image as the documents say has the one that the chart
// installs.
func TestImageOfTheChart(t *testing.T) {
	version := appVersion.FindStringSubmatch(read(t, "charts/beeline/Chart.yaml"))
	if version == nil {
		t.Fatal("Chart.yaml has no appVersion")
	}
	found := 0
	for path, text := range pages.All(t) {
		for _, m := range imageMade.FindAllStringSubmatch(text, -1) {
			if m[1] == version[1] {
				found++
			} else if m[1] != "..." {
				t.Errorf("%s makes the image %s, the chart installs %s", path, m[1], version[1])
			}
		}
	}
	if found == 0 {
		t.Error("no document says how to make the image that the chart installs")
	}
}

package docs_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	link       = regexp.MustCompile(`\]\(([^)#]*)(#[^)]*)?\)`)
	appVersion = regexp.MustCompile(`(?m)^appVersion: (.*)$`)
	imageMade  = regexp.MustCompile(`make image VERSION=(\S+)`)
)

// documents returns the texts of the repository by path.
func documents(t *testing.T) map[string]string {
	t.Helper()
	all := make(map[string]string)
	err := filepath.WalkDir("../..", func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() && path != "../.." && (strings.HasPrefix(entry.Name(), ".") || entry.Name() == "bin") {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(path, ".md") {
			return nil
		}
		text, err := os.ReadFile(path)
		all[path] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// TestLinks: what a document links to in the repository is there.
func TestLinks(t *testing.T) {
	for path, text := range documents(t) {
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			if m[1] == "" || strings.Contains(m[1], "://") {
				continue
			}
			if _, err := os.Stat(filepath.Join(filepath.Dir(path), m[1])); err != nil {
				t.Errorf("%s: %v", path, err)
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
	for path, text := range documents(t) {
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

package docs_test

import (
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/beeline-lb/beeline/tests/pages"
)

// TestHelmValues: documents set values that the chart has. What it takes for them is shown with
// helm itself, by TestDocumentedCommands in tests/chart.
func TestHelmValues(t *testing.T) {
	values := make(map[string]any)
	if err := yaml.Unmarshal([]byte(read(t, "charts/beeline/values.yaml")), &values); err != nil {
		t.Fatal(err)
	}
	found := 0
	for path, text := range pages.All(t) {
		for _, command := range pages.Commands(text) {
			words := pages.Words(command)
			for i, word := range words {
				if word != "--set" || i+1 == len(words) {
					continue
				}
				for _, pair := range strings.Split(words[i+1], ",") {
					found++
					key, _, _ := strings.Cut(pair, "=")
					if !hasPath(values, "/"+strings.ReplaceAll(key, ".", "/")) {
						t.Errorf("%s: %s: the chart has no value %s", path, command, key)
					}
				}
			}
		}
	}
	if found < 10 {
		t.Errorf("found %d values only", found)
	}
}

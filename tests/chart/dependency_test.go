package chart_test

import (
	"os"
	"path/filepath"
	"testing"
)

// TestDependency: a chart that depends on this one under a condition may enable or disable it. Helm
// passes the condition's value on as one of this chart's.
func TestDependency(t *testing.T) {
	t.Parallel()
	h := newHelm(t, "")
	parent := t.TempDir()
	chart := `apiVersion: v2
name: platform
version: 0.1.0
dependencies:
  - {name: beeline, version: "*", condition: beeline.enabled}
`
	if err := os.WriteFile(filepath.Join(parent, "Chart.yaml"), []byte(chart), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(filepath.Join(parent, "charts", "beeline"), os.DirFS(chartDir(t))); err != nil {
		t.Fatal(err)
	}
	for enabled, want := range map[string]bool{"true": true, "false": false} {
		rendered, err := h.run("template", release, parent, values(t, "beeline: {enabled: "+enabled+", apiServer: {host: 192.0.2.1}}"))
		if err != nil {
			t.Errorf("enabled: %s: %v", enabled, err)
			continue
		}
		if got := len(decode(t, rendered)) > 0; got != want {
			t.Errorf("enabled: %s: the chart is rendered: %t", enabled, got)
		}
	}
}

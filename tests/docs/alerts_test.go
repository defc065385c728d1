package docs_test

import (
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/beeline-lb/beeline/tests/registry"
)

const (
	alertsPage = "docs/alerts.md"
	runbooks   = "https://github.com/beeline-lb/beeline/blob/main/" + alertsPage + "#"
	// metricsHeading is that of the section which is of no alert.
	metricsHeading = "Metrics"
)

var (
	section      = regexp.MustCompile(`(?m)^## (.*)$`)
	metricRow    = regexp.MustCompile("(?m)^\\| `([a-z_]+)` \\| ([a-z]+) \\| ([^|]*) ?\\| [^|]+ \\|$")
	metricInCode = regexp.MustCompile(`"((?:beeline|kubeproxy)_[a-z_]+)"`)
)

// TestAlerts: each alert of the chart leads to its section, and each section is of an alert.
func TestAlerts(t *testing.T) {
	var file struct {
		Groups []struct {
			Rules []struct {
				Alert       string
				Annotations map[string]string
			}
		}
	}
	if err := yaml.Unmarshal([]byte(read(t, "charts/beeline/alerts/beeline.yaml")), &file); err != nil {
		t.Fatal(err)
	}
	want := []string{metricsHeading}
	for _, group := range file.Groups {
		for _, rule := range group.Rules {
			want = append(want, rule.Alert)
			if url := runbooks + strings.ToLower(rule.Alert); rule.Annotations["runbook_url"] != url {
				t.Errorf("alert %s has the runbook %q, want %q", rule.Alert, rule.Annotations["runbook_url"], url)
			}
		}
	}
	var got []string
	for _, m := range section.FindAllStringSubmatch(read(t, alertsPage), -1) {
		got = append(got, m[1])
	}
	slices.Sort(want)
	slices.Sort(got)
	if len(want) < 10 || !slices.Equal(got, want) {
		t.Errorf("%s has the sections\n%s\nwant\n%s", alertsPage, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestMetrics: the table has each metric that the agent registers, with its labels and type.
func TestMetrics(t *testing.T) {
	have := registry.Agent()
	inCode := make(map[string]bool)
	for _, folder := range []string{"pkg", "cmd"} {
		for path, text := range sources(t, folder, ".go") {
			if strings.HasSuffix(path, "_test.go") {
				continue
			}
			for _, m := range metricInCode.FindAllStringSubmatch(text, -1) {
				inCode[m[1]] = true
			}
		}
	}
	// One that tests/registry has no collector of is found by its name.
	for name := range inCode {
		if _, ok := have[name]; !ok {
			t.Errorf("%s is in the source, and tests/registry does not register it", name)
		}
	}
	_, table, _ := strings.Cut(read(t, alertsPage), "## "+metricsHeading)
	rows := make(map[string]bool)
	for _, m := range metricRow.FindAllStringSubmatch(table, -1) {
		name, kind := m[1], m[2]
		labels := strings.ReplaceAll(strings.TrimSpace(strings.ReplaceAll(m[3], "`", "")), ", ", ",")
		if rows[name] {
			t.Errorf("%s: %s is there twice", alertsPage, name)
		}
		rows[name] = true
		metric, ok := have[name]
		switch {
		case !ok:
			t.Errorf("%s: the agent has no metric %s", alertsPage, name)
		case labels != metric.Labels:
			t.Errorf("%s: %s has the labels %q, want %q", alertsPage, name, labels, metric.Labels)
		case metric.Kind != "" && kind != metric.Kind:
			t.Errorf("%s: %s is a %s, want a %s", alertsPage, name, kind, metric.Kind)
		case !slices.Contains([]string{"counter", "gauge", "histogram"}, kind):
			t.Errorf("%s: %s is a %q", alertsPage, name, kind)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(have)) {
		if !rows[name] {
			t.Errorf("%s lacks the metric %s", alertsPage, name)
		}
	}
	if lines := strings.Count(table, "\n| `"); lines != len(rows) {
		t.Errorf("%s: %d of %d rows of metrics could be read", alertsPage, len(rows), lines)
	}
}

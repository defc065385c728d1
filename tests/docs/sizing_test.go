package docs_test

import (
	"regexp"
	"strconv"
	"testing"

	"sigs.k8s.io/yaml"
)

// TestRequestOfTheChart: the chart requests as much memory as docs/sizing.md says, and that is
// enough for what the page says that it is for.
func TestRequestOfTheChart(t *testing.T) {
	page := read(t, "docs/sizing.md")
	mib := func(text string) int {
		t.Helper()
		m := regexp.MustCompile(text).FindStringSubmatch(page)
		if m == nil {
			t.Fatalf("docs/sizing.md has no %q", text)
		}
		n, err := strconv.Atoi(m[1])
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	request := mib(`request of (\d+) MiB is enough for 10,000 Services and 131,072 connections`)
	parts := mib(`(?m)^\|.*\| 131,072 \| (\d+) MiB \|$`) + mib(`(?m)^\| 10,000 \|.*\| (\d+) MiB \|$`) +
		mib(`up to (\d+) MiB for the program`)
	if parts > request {
		t.Errorf("docs/sizing.md: what a pod takes are %d MiB, more than the chart's request of %d MiB", parts, request)
	}
	var values struct {
		Resources struct {
			Requests struct {
				Memory string `json:"memory"`
			} `json:"requests"`
		} `json:"resources"`
	}
	if err := yaml.Unmarshal([]byte(read(t, "charts/beeline/values.yaml")), &values); err != nil {
		t.Fatal(err)
	}
	if got, want := values.Resources.Requests.Memory, strconv.Itoa(request)+"Mi"; got != want {
		t.Errorf("the chart requests %s of memory, docs/sizing.md says %s", got, want)
	}
}

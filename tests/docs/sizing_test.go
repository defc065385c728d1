package docs_test

import (
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// sizing reads figures of a document about memory.
type sizing struct {
	t    *testing.T
	name string
	text string
}

func readSizing(t *testing.T, name string) sizing {
	t.Helper()
	return sizing{t, name, read(t, name)}
}

// number returns the number that a regular expression has in its parentheses.
func (s sizing) number(format string, args ...any) float64 {
	s.t.Helper()
	expression := fmt.Sprintf(format, args...)
	m := regexp.MustCompile(expression).FindStringSubmatch(s.text)
	if m == nil {
		s.t.Fatalf("%s has no %q", s.name, expression)
	}
	n, err := strconv.ParseFloat(strings.ReplaceAll(m[1], ",", ""), 64)
	if err != nil {
		s.t.Fatal(err)
	}
	return n
}

// pod returns what docs/sizing.md says that a pod takes, in MiB.
func (s sizing) pod(connections, services, endpoints string) float64 {
	s.t.Helper()
	return s.number(`(?m)^\|.*\| %s \| (\d+) MiB \|$`, connections) +
		s.number(`(?m)^\| %s \| %s \|.*\| (\d+) MiB \|$`, services, endpoints) +
		s.number(`up to (\d+) MiB for the program`)
}

// thousands writes a number as the documents do.
func thousands(n int) string {
	if n < 1000 {
		return strconv.Itoa(n)
	}
	return fmt.Sprintf("%s,%03d", thousands(n/1000), n%1000)
}

// TestRequestOfTheChart: the chart requests as much memory as docs/sizing.md says, and that is
// enough for what the page says that it is for.
func TestRequestOfTheChart(t *testing.T) {
	page := readSizing(t, "docs/sizing.md")
	request := page.number(`request of (\d+) MiB is enough for 10,000 Services of 10 endpoints and 131,072 connections`)
	if takes := page.pod("131,072", "10,000", "100,000"); takes > request {
		t.Errorf("docs/sizing.md: what a pod takes are %v MiB, more than the chart's request of %v MiB", takes, request)
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
	if got, want := values.Resources.Requests.Memory, fmt.Sprintf("%vMi", request); got != want {
		t.Errorf("the chart requests %s of memory, docs/sizing.md says %s", got, want)
	}
}

// TestSizesAreMeasured: docs/sizing.md has a row for each size that the report of the
// benchmarks has, with its figures.
func TestSizesAreMeasured(t *testing.T) {
	const report = "tests/bench/RESULTS.md"
	page := read(t, "docs/sizing.md")
	sections := strings.Split(read(t, report), "\n### ")
	found := 0
	for _, text := range sections {
		var services, endpoints int
		if n, _ := fmt.Sscanf(text, "Memory, %d Services x %d endpoints", &services, &endpoints); n != 2 {
			continue
		}
		found++
		section := sizing{t, report, text}
		tables := math.Round(section.number(`(?m)^\| kernel memory of the tables[^|]*\| ([\d.]+) MiB`))
		agent := math.Round(section.number(`(?m)^\| agent's private memory \| ([\d.]+) MiB`))
		want := fmt.Sprintf("| %s | %s | %v MiB | %v MiB | %v MiB |",
			thousands(services), thousands(services*endpoints), tables, agent, tables+agent)
		if !strings.Contains(page, "\n"+want+"\n") {
			t.Errorf("docs/sizing.md does not have the row that %s gives:\n%s", report, want)
		}
	}
	if found < 4 {
		t.Errorf("%s has %d sizes", report, found)
	}
}

var readmeSize = regexp.MustCompile(`(?m)^\| ([\d,]+) \| ([\d,]+) \| ([\d,]+) \| (\d+) MiB \|$`)

// TestSizesInReadme: README.md adds up what docs/sizing.md says.
func TestSizesInReadme(t *testing.T) {
	page := readSizing(t, "docs/sizing.md")
	rows := readmeSize.FindAllStringSubmatch(read(t, "README.md"), -1)
	if len(rows) < 4 {
		t.Errorf("README.md has %d sizes", len(rows))
	}
	for _, row := range rows {
		if want := fmt.Sprint(page.pod(row[1], row[2], row[3])); row[4] != want {
			t.Errorf("README.md says %q, by docs/sizing.md it is %s MiB", row[0], want)
		}
	}
}

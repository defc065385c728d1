package main

import (
	"encoding/xml"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
)

func TestQuantile(t *testing.T) {
	values := []float64{40, 10, 30, 20}
	for share, want := range map[float64]float64{0: 10, 0.5: 25, 0.99: 39.7, 1: 40} {
		if got := quantile(values, share); number(got) != number(want) {
			t.Errorf("quantile(%v) = %v, want %v", share, got, want)
		}
	}
	if values[0] != 40 {
		t.Error("quantile has sorted its argument")
	}
}

func TestFigure(t *testing.T) {
	runs := [][]float64{{1, 2, 3}, {4, 5, 6}, {5, 6, 70}}
	median := quantity{}.figure(runs)
	if median.value != 5 || median.runs != [2]float64{2, 6} || median.count != 9 || number(median.tenth) != "1.80" {
		t.Errorf("median: got %+v", median)
	}
	if p99 := (quantity{p99: true}).figure(runs); p99.value < 60 {
		t.Errorf("99th percentile: got %v, want nearly the largest of all samples", p99.value)
	}
}

func TestTailIsComparedWithTheLowerOneOfEachRun(t *testing.T) {
	r := make(results)
	for _, run := range []map[string]float64{
		{beeline: 10, "iptables": 40, "nftables": 20},
		{beeline: 30, "iptables": 10, "nftables": 20},
	} {
		for name, latency := range run {
			r.add(samples{near.key("latency", name): {latency}})
		}
	}
	r.derive()
	if got := slices.Concat(r[near.key("p99", "against")]...); !slices.Equal(got, []float64{0.5, 3}) {
		t.Errorf("got %v, want 0.5 and 3", got)
	}
}

func TestVerdict(t *testing.T) {
	cases := []struct {
		bound  bound
		bar    float64
		values []float64
		want   string
	}{
		{atMost, 40, []float64{40}, "met"},
		{atMost, 40, []float64{40.1}, "missed"},
		{atLeast, 0.95, []float64{0.95}, "met"},
		{atLeast, 0.95, []float64{0.94}, "missed"},
		{likely, 1, []float64{0.9, 0.99, 1.1}, "met"},
		{likely, 1, []float64{0.9, 0.91, 0.92}, "missed"},
		{none, 0, []float64{7}, ""},
	}
	for _, c := range cases {
		f := quantity{bound: c.bound, bar: c.bar}.figure([][]float64{c.values})
		if got := f.verdict(); got != c.want {
			t.Errorf("%v against %q: got %q, want %q", c.values, f.barText(), got, c.want)
		}
	}
}

func TestReportNamesWhatIsMissed(t *testing.T) {
	var r results = map[string][][]float64{
		"connect/none/IPv4":    {{39}},
		"connect/service/IPv4": {{101}},
	}
	figures := judge(r)
	out := new(strings.Builder)
	if err := writeText(out, machine{CPU: "a CPU", Others: 6}, figures); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"1 of 2 bars are met", "a CPU",
		"no Service, on top of the empty program | 39.0 ns |  |  |  | <= 40 | met |",
		"ClusterIP, on top of the empty program | 101 ns |  |  |  | <= 100 | **missed** |",
		"take those with care",
	} {
		if !strings.Contains(strings.ReplaceAll(out.String(), "\n", " "), want) {
			t.Errorf("the report lacks %q:\n%s", want, out)
		}
	}
}

func TestPlotIsXML(t *testing.T) {
	d := xml.NewDecoder(strings.NewReader(plot(judge(results{"connect/none/IPv6": {{39, 50}}}))))
	for {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			t.Fatal(err)
		}
	}
}

package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/beeline-lb/beeline/tests/cluster/loadstats"
)

// TestExplainReboot: a reboot of the second node explains failures that may lead through it.
func TestExplainReboot(t *testing.T) {
	explains := explainReboot(2, map[string]bool{"echo-2": true})
	for _, c := range []struct {
		client, target, server string
		want                   bool
	}{
		{outsideSource, "http://198.18.0.11:30080", "", true}, // any new connection
		{"pod on node-1", "udp://[fd98:96::5]:80", "", true},
		{"pod on node-1", "http://10.96.0.5:80", "echo-2", true},
		{"pod on node-1", "http://10.96.0.5:80", "echo-3", false},
		{"pod on node-1", "http://[fd98:18::12]:30080", "echo-3", true}, // by a port of the node
		{"pod on node-1", "http://[fd98:18::11]:30080", "echo-3", false},
		{outsideSource, "http://198.18.100.1:80", "echo-3", true}, // the load balancer may have chosen the node
		{"pod on node-1", "http://198.18.100.1:80", "echo-3", false},
	} {
		if got := explains(c.client, loadstats.Path{Target: c.target, Server: c.server}); got != c.want {
			t.Errorf("%s, %s, server %q: %v", c.client, c.target, c.server, got)
		}
	}
}

// TestCompare: failures count from the last reading on, and those that are not explained are
// named. The counts come as JSON.
func TestCompare(t *testing.T) {
	here, there := loadstats.Path{Target: "http://here:80", Server: "one"}, loadstats.Path{Target: "http://there:80"}
	before := loadstats.Stats{Requests: 10, Short: 5, Datagrams: 1, Failures: map[loadstats.Path]loadstats.Failure{here: {Times: 2}}}
	b, err := json.Marshal(loadstats.Stats{Requests: 30, Short: 6, Datagrams: 4, Failures: map[loadstats.Path]loadstats.Failure{here: {Times: 5}, there: {Times: 1, Latest: "gone"}}})
	if err != nil {
		t.Fatal(err)
	}
	var now loadstats.Stats
	if err := json.Unmarshal(b, &now); err != nil {
		t.Fatal(err)
	}
	got, unexplained := compare("c", before, now, func(_ string, p loadstats.Path) bool { return p == here })
	if want := (seen{requests: 21, datagrams: 3, failed: 4, explained: 3}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if want := []string{`1 times, server "", the latest: gone`}; !reflect.DeepEqual(unexplained, want) {
		t.Errorf("unexplained %q, want %q", unexplained, want)
	}
	if got, _ := compare("c", before, now, nil); got.explained != 0 {
		t.Errorf("%d are explained by nothing", got.explained)
	}
}

// TestJudgeLevel: the first quarter may be anything, the last is compared with the second.
func TestJudgeLevel(t *testing.T) {
	for _, c := range []struct {
		values []float64
		want   string
	}{
		{[]float64{90, 90, 50, 50, 50, 50, 61, 61}, levelKept},
		{[]float64{1, 1, 50, 50, 50, 50, 63, 63}, levelGrown},
		{[]float64{1, 1, 50, 50, 50, 50, 63}, levelTooFew},
		{[]float64{1}, levelTooFew},
		{nil, levelTooFew},
	} {
		if got := judgeLevel(c.values, 2); got.verdict != c.want {
			t.Errorf("%v: %+v, want %s", c.values, got, c.want)
		}
	}
}

func TestSumMetrics(t *testing.T) {
	page := "# TYPE a counter\na{part=\"x\"} 1\na{part=\"y\"} 2\nab 5\n"
	if got, err := sumMetrics(strings.NewReader(page), []string{"ab", "a"}); err != nil || got[0] != 5 || got[1] != 3 {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := sumMetrics(strings.NewReader(page), []string{"b"}); err == nil {
		t.Error("a metric that is missing is no error")
	}
}

// TestResultsKeepTheOtherParts: what writes one part of the page leaves the others as they are.
func TestResultsKeepTheOtherParts(t *testing.T) {
	root := t.TempDir()
	path := filepath.Join(root, "tests/cluster/RESULTS.md")
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("# Upstream\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, change := range []struct {
		upstream, policy, soak string
		want                   string
	}{
		{soak: soakHeading + "one\n", want: "# Upstream\n\n## Soak\none\n"},
		{soak: soakHeading + "two\n", want: "# Upstream\n\n## Soak\ntwo\n"},
		{upstream: "# New\n", want: "# New\n\n## Soak\ntwo\n"},
		{policy: policyHeading + "a\n", want: "# New\n\n## NetworkPolicy\na\n\n## Soak\ntwo\n"},
		{policy: policyHeading + "b\n", want: "# New\n\n## NetworkPolicy\nb\n\n## Soak\ntwo\n"},
		{upstream: "# Newer\n", soak: soakHeading + "three\n", want: "# Newer\n\n## NetworkPolicy\nb\n\n## Soak\nthree\n"},
	} {
		err := changeResults(root, func(p *resultParts) {
			for part, with := range map[*[]byte]string{&p.upstream: change.upstream, &p.policy: change.policy, &p.soak: change.soak} {
				if with != "" {
					*part = []byte(with)
				}
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		if got, _ := os.ReadFile(path); string(got) != change.want {
			t.Errorf("got %q, want %q", got, change.want)
		}
	}
}

func TestShortDuration(t *testing.T) {
	for d, want := range map[time.Duration]string{
		10 * time.Minute: "10m", 2 * time.Hour: "2h", 90 * time.Minute: "1h30m", 20 * time.Second: "20s", 61 * time.Second: "1m1s",
	} {
		if got := shortDuration(d); got != want {
			t.Errorf("%s: %s, want %s", d, got, want)
		}
	}
}

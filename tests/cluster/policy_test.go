package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/beeline-lb/beeline/tests/cluster/loadstats"
)

// readingOf returns what a cluster has to show under a policy.
func readingOf(rule policyRule, s settings) policyReading {
	reading := make(policyReading)
	for _, f := range policyFlows {
		a := f.wanted(rule, s)
		reading[f.String()] = map[string]policyAnswer{"TCP IPv4": a, "UDP IPv6": a}
	}
	return reading
}

var (
	behindBeeline   = settings{Proxy: proxyBeeline}
	behindKubeProxy = settings{Proxy: proxyKubeProxy}
)

// TestPolicyRules: each policy allows something and denies something, behind either proxy.
func TestPolicyRules(t *testing.T) {
	for _, rule := range policyRules(2) {
		for _, s := range []settings{behindBeeline, behindKubeProxy, {Proxy: proxyKubeProxy, Policy: policyKubeNetworkPolicies}} {
			reading := readingOf(rule, s)
			if err := reading.check(rule, s); err != nil {
				t.Errorf("%s, %s: %v", rule.name, s.Proxy, err)
			}
			summary := reading.summary()
			if nothing := strings.HasPrefix(summary, "0 ") || strings.Contains(summary, " 0 "); nothing && rule.spec != nil && rule.name != "allow the endpoint's port" {
				t.Errorf("%s, %s: %s", rule.name, s.Proxy, summary)
			}
		}
	}
}

// TestPolicyCheck: one request that is not as the policy says is named.
func TestPolicyCheck(t *testing.T) {
	deny := policyRules(2)[1]
	reading := readingOf(deny, behindBeeline)
	reading[policyFlows[0].String()]["UDP IPv6"] = policyAnswer{Allowed: true, Source: fromFriend}
	err := reading.check(deny, behindBeeline)
	if want := "pod, same node → ClusterIP, UDP IPv6: allowed, the server saw the pod, want denied"; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	none := policyRules(2)[0]
	reading = readingOf(none, behindBeeline)
	reading[policyFlows[0].String()]["UDP IPv6"] = policyAnswer{Allowed: true, Source: fromFar}
	if err := reading.check(none, behindBeeline); err == nil {
		t.Error("another source is not told")
	}
}

func TestWhatBecame(t *testing.T) {
	before := loadstats.Stats{Requests: 10, Datagrams: 10, Broken: 1, Lost: 1}
	for _, c := range []struct {
		during, after loadstats.Stats
		want          string
	}{
		{loadstats.Stats{Requests: 20, Datagrams: 20, Broken: 1, Lost: 1}, loadstats.Stats{Requests: 30, Datagrams: 30, Broken: 1, Lost: 1}, "TCP goes on, UDP goes on"},
		{loadstats.Stats{Requests: 20, Datagrams: 20, Broken: 1, Lost: 1}, loadstats.Stats{Requests: 20, Datagrams: 20, Broken: 5, Lost: 3}, "TCP ends, UDP ends"},
		{loadstats.Stats{Requests: 20, Datagrams: 20, Broken: 2, Lost: 1}, loadstats.Stats{Requests: 30, Datagrams: 20, Broken: 2, Lost: 1}, "TCP goes on: true, 1 ended, UDP goes on: false, 0 ended"},
	} {
		if got := whatBecame(before, c.during, c.after); got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
}

// TestPolicySection: what all proxies show is one word, a difference needs a reason.
func TestPolicySection(t *testing.T) {
	reports := t.TempDir()
	write := func(variant string, as settings, paths ...string) {
		t.Helper()
		var results []policyResult
		for _, path := range paths {
			r := policyResult{Path: path, Readings: make(map[string]policyReading), Open: map[string]string{outside: "TCP goes on, UDP goes on"}}
			for _, rule := range policyRules(2) {
				r.Readings[rule.name] = readingOf(rule, as)
			}
			results = append(results, r)
		}
		b, err := json.Marshal(results)
		if err != nil {
			t.Fatal(err)
		}
		file := policyFile(reports, variant)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if section, err := policySection(reports, nil); err != nil || len(section) != 0 {
		t.Errorf("without results: %q, %v", section, err)
	}
	write("beeline-kube-router", behindBeeline, "sockets", "packets")
	if section, err := policySection(reports, nil); err != nil || len(section) != 0 {
		t.Errorf("of Beeline alone: %q, %v", section, err)
	}
	write("kube-proxy-nftables-kube-router", behindBeeline, "packets")
	section, err := policySection(reports, nil)
	if err != nil {
		t.Errorf("all alike: %v", err)
	}
	for _, want := range []string{
		"### kube-router", "| pod, same node → ClusterIP | yes | no | yes | no |", "| outside | TCP goes on, UDP goes on |",
	} {
		if !strings.Contains(string(section), want) {
			t.Errorf("no %q in\n%s", want, section)
		}
	}
	write("kube-proxy-nftables-kube-router", behindKubeProxy, "packets")
	name := "NetworkPolicy: " + friendFar + " → " + toBalancer
	if _, err := policySection(reports, nil); err == nil || !strings.Contains(err.Error(), name) {
		t.Errorf("a difference without a reason: %v", err)
	}
	why, err := parseReasons(reasonsText)
	if err != nil {
		t.Fatal(err)
	}
	section, err = policySection(reports, why)
	if err != nil {
		t.Error(err)
	}
	if want := "Beeline, sockets: yes; Beeline, packets: yes; kube-proxy: no"; !strings.Contains(string(section), want) {
		t.Errorf("no %q in\n%s", want, section)
	}
}

// TestPolicyManifests: each document of the manifests is YAML of an object with a name.
func TestPolicyManifests(t *testing.T) {
	knp := kubeNetworkPolicies.data()
	knp["QueueExpression"] = false
	for name, data := range map[string]map[string]any{
		"policy.yaml": {
			"Namespace": policyNamespace, "Strangers": strangeNamespace, "Near": nodeName(1), "Port": 1,
			"Servers": []string{"server"}, "Services": []map[string]any{{"Name": "a", "Server": "b", "Policy": "Local"}}, "Clients": policyClients(),
		},
		"policy-long.yaml":           {"Nodes": []string{nodeName(1)}, "Namespace": policyNamespace, "Connections": 4, "Targets": "a,b", "Datagrams": "c"},
		"kube-network-policies.yaml": knp,
	} {
		manifest, err := render(name, data)
		if err != nil {
			t.Fatal(err)
		}
		for _, document := range strings.Split(manifest, "\n---\n") {
			var object struct {
				Kind     string
				Metadata struct{ Name string }
			}
			if err := yaml.Unmarshal([]byte(document), &object); err != nil || object.Kind == "" || object.Metadata.Name == "" {
				t.Errorf("%s: %v\n%s", name, err, document)
			}
		}
	}
}

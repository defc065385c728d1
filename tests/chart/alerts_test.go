package chart_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/beeline-lb/beeline/tests/lab"
	"github.com/beeline-lb/beeline/tests/tier"
)

// samples are series in the notation of promtool, one value a minute.
type samples map[string]string

// alertCase is a state of a cluster in which an alert fires, and one beside it in which it does not.
type alertCase struct {
	fires samples
	quiet samples
	at    string // when both are looked at
	// labels are those of the alert that fires beside the rule's own, in YAML.
	labels  string
	summary string
}

// alertCases has each alert of the chart.
var alertCases = map[string]alertCase{
	"BeelineAgentGone": {
		fires: samples{
			`kube_node_info{node="a"}`: "1x30", `kubeproxy_sync_proxy_rules_last_timestamp_seconds{node="a"}`: "1 1 _x30",
			`kube_node_info{node="b"}`: "1x30", `kubeproxy_sync_proxy_rules_last_timestamp_seconds{node="b"}`: "1x30",
		},
		// Longer than an upgrade, and back.
		quiet:   samples{`kube_node_info{node="a"}`: "1x30", `kubeproxy_sync_proxy_rules_last_timestamp_seconds{node="a"}`: "1x10 _x15 1x5"},
		at:      "25m",
		labels:  "{node: a}",
		summary: "No agent of Beeline has been seen on a for 15 minutes.",
	},
	"BeelineChangesWait": {
		fires:   samples{`beeline_sync_services_pending{node="a"}`: "3x10"},
		quiet:   samples{`beeline_sync_services_pending{node="a"}`: "3x3 0 3x3"},
		at:      "6m",
		labels:  "{node: a}",
		summary: "a has not applied changes of 3 Services for 5 minutes.",
	},
	"BeelineSlow": {
		fires: samples{
			`kubeproxy_network_programming_duration_seconds_bucket{node="a",le="1"}`:    "0x30",
			`kubeproxy_network_programming_duration_seconds_bucket{node="a",le="21"}`:   "0+10x30",
			`kubeproxy_network_programming_duration_seconds_bucket{node="a",le="+Inf"}`: "0+10x30",
		},
		quiet: samples{
			`kubeproxy_network_programming_duration_seconds_bucket{node="a",le="1"}`:    "0+10x30",
			`kubeproxy_network_programming_duration_seconds_bucket{node="a",le="21"}`:   "0+10x30",
			`kubeproxy_network_programming_duration_seconds_bucket{node="a",le="+Inf"}`: "0+10x30",
		},
		at:      "25m",
		labels:  "{node: a}",
		summary: "On a changes of endpoints take 20.8s to come into effect.",
	},
	"BeelineTableFull": {
		fires:   samples{`beeline_table_full_total{node="a",map="bl_slot"}`: "0x5 1x10"},
		quiet:   samples{`beeline_table_full_total{node="a",map="bl_slot"}`: "1x15"},
		at:      "10m",
		labels:  "{node: a, map: bl_slot}",
		summary: "The table bl_slot on a has no room.",
	},
	"BeelineTableFills": {
		fires:   samples{`beeline_table_entries{node="a",map="bl_slot"}`: "95x20", `beeline_table_entries_free{node="a",map="bl_slot"}`: "5x20"},
		quiet:   samples{`beeline_table_entries{node="a",map="bl_slot"}`: "90x20", `beeline_table_entries_free{node="a",map="bl_slot"}`: "10x20"},
		at:      "16m",
		labels:  "{node: a, map: bl_slot}",
		summary: "The table bl_slot on a is 95% full.",
	},
	"BeelineFlowsEvicted": {
		fires:   samples{`beeline_flows_evicted_total{node="a",state="established"}`: "0+60x10"},
		quiet:   samples{`beeline_flows_evicted_total{node="a",state="half_open"}`: "0+60x10", `beeline_flows_evicted_total{node="a",state="established"}`: "7x10"},
		at:      "6m",
		labels:  "{node: a, state: established}",
		summary: "a evicts 1 established connections of clients outside a second: the flow table is full.",
	},
	"BeelineFlowsFull": {
		fires:   samples{`beeline_flows{node="a"}`: "95x10", `beeline_flows_free{node="a"}`: "5x10"},
		quiet:   samples{`beeline_flows{node="a"}`: "90x10", `beeline_flows_free{node="a"}`: "10x10", `beeline_flows{node="b"}`: "0x10", `beeline_flows_free{node="b"}`: "0x10"},
		at:      "6m",
		labels:  "{node: a}",
		summary: "The flow table of a is nearly full.",
	},
	"BeelineFlood": {
		fires:   samples{`beeline_datapath_events_total{node="a",effect="served",reason="flow_overflow"}`: "0+120000x15"},
		quiet:   samples{`beeline_datapath_events_total{node="a",effect="served",reason="flow_overflow"}`: "0+30000x15"},
		at:      "12m",
		labels:  "{node: a, effect: served, reason: flow_overflow}",
		summary: "a gets 2k connections a second that stay half-open.",
	},
	"BeelineSourcePortsExhausted": {
		// The series begins with the first connection that is dropped.
		fires:   samples{`beeline_source_ports_exhausted_total{node="a",namespace="shop",service="web",endpoint="10.0.0.1:80"}`: "_x5 1x10"},
		quiet:   samples{`beeline_source_ports_exhausted_total{node="a",namespace="shop",service="web",endpoint="10.0.0.1:80"}`: "1x15"},
		at:      "8m",
		labels:  `{node: a, namespace: shop, service: web, endpoint: "10.0.0.1:80"}`,
		summary: "a has no free source port for new connections to 10.0.0.1:80 of shop/web.",
	},
	"BeelineNodesUnreachable": {
		fires:   samples{`beeline_nodes{node="a",answer="unreachable"}`: "2x20"},
		quiet:   samples{`beeline_nodes{node="a",answer="unreachable"}`: "2x10 0x10", `beeline_nodes{node="a",answer="refuses"}`: "2x20"},
		at:      "16m",
		labels:  "{node: a, answer: unreachable}",
		summary: "a gets no answer about the tunnel from 2 nodes with endpoints for it.",
	},
	"BeelineTunnelSecretDiffers": {
		fires: samples{`beeline_datapath_events_total{node="a",effect="dropped",reason="tunnel_wrong_secret"}`: "0+60x20"},
		// As while a secret is rotated.
		quiet:   samples{`beeline_datapath_events_total{node="a",effect="dropped",reason="tunnel_wrong_secret"}`: "0x5 0+60x3 180x20"},
		at:      "13m",
		labels:  "{node: a, effect: dropped, reason: tunnel_wrong_secret}",
		summary: "a drops 1 packets a second of the tunnel that lack the cluster's secret.",
	},
	"BeelineTunnelSpoofed": {
		fires:   samples{`beeline_datapath_events_total{node="a",effect="dropped",reason="tunnel_spoofed"}`: "0x5 1x10"},
		quiet:   samples{`beeline_datapath_events_total{node="a",effect="dropped",reason="tunnel_spoofed"}`: "1x15"},
		at:      "8m",
		labels:  "{node: a, effect: dropped, reason: tunnel_spoofed}",
		summary: "A pod or a process on a sends packets to the tunnel's port of other nodes.",
	},
	"BeelineDeviceFailed": {
		fires:   samples{`beeline_devices{node="a",role="clients",state="failed"}`: "1x15", `beeline_devices{node="a",role="pods",state="failed"}`: "1x15"},
		quiet:   samples{`beeline_devices{node="a",role="clients",state="served"}`: "1x15", `beeline_devices{node="a",role="pods",state="failed"}`: "1x5 0x10"},
		at:      "11m",
		labels:  "{node: a}",
		summary: "On a 2 network devices cannot be served.",
	},
	"BeelineChangedByOthers": {
		fires: samples{`beeline_verify_findings_total{node="a",part="tables"}`: "0x30 1 2x60"},
		// Once may be an accident.
		quiet:   samples{`beeline_verify_findings_total{node="a",part="tables"}`: "0x30 1x60"},
		at:      "70m30s", // between two samples, as always with a real scraper
		labels:  "{node: a, part: tables}",
		summary: "On a somebody else changes Beeline's tables.",
	},
	"BeelineNodeMisconfigured": {
		fires: samples{`beeline_verify_machine_findings{node="a",kind="rp-filter"}`: "0x2 2x15", `beeline_verify_machine_findings{node="a",kind="clock"}`: "0x20"},
		// As while a device is set up.
		quiet:   samples{`beeline_verify_machine_findings{node="a",kind="rp-filter"}`: "1x8 0 1x8"},
		at:      "14m",
		labels:  "{node: a, kind: rp-filter}",
		summary: "a is not set up as Beeline needs it: rp-filter.",
	},
	"BeelineUnhealthy": {
		fires:   samples{`kubeproxy_proxy_livez_total{node="a",code="503"}`: "0+6x15"},
		quiet:   samples{`kubeproxy_proxy_livez_total{node="a",code="200"}`: "0+6x15", `kubeproxy_proxy_livez_total{node="a",code="503"}`: "6x15"},
		at:      "8m",
		labels:  `{node: a, code: "503"}`,
		summary: "The agent on a is unhealthy: a change has waited for twice syncPeriod.",
	},
}

// rule is what a test needs of an alert.
type rule struct {
	Alert       string            `json:"alert"`
	Expr        string            `json:"expr"`
	For         string            `json:"for,omitempty"`
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
}

// alertsFile is the chart's file of rules.
func alertsFile(t *testing.T) string {
	t.Helper()
	return filepath.Join(chartDir(t), "alerts", "beeline.yaml")
}

// alertRules returns the rules of the chart.
func alertRules(t *testing.T) (rules []rule) {
	t.Helper()
	text, err := os.ReadFile(alertsFile(t))
	if err != nil {
		t.Fatal(err)
	}
	var file struct{ Groups []struct{ Rules []rule } }
	if err := yaml.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	for _, g := range file.Groups {
		rules = append(rules, g.Rules...)
	}
	return rules
}

// promtool runs promtool over a file.
func promtool(t *testing.T, path string, command ...string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), "promtool", append(command, path)...).CombinedOutput(); err != nil {
		t.Errorf("promtool %s %s: %v\n%s", strings.Join(command, " "), filepath.Base(path), err, out)
	}
}

// write writes a file and returns its path.
func write(t *testing.T, dir, name, content string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// groups is a file of rules.
func groups(t *testing.T, rules any) string {
	t.Helper()
	text, err := yaml.Marshal(map[string]any{"groups": []any{map[string]any{"name": "beeline", "rules": rules}}})
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// alertTest is what promtool is to find of an alert in a state.
func alertTest(t *testing.T, alert, at string, series samples, want []any) map[string]any {
	t.Helper()
	var input []any
	for _, name := range slices.Sorted(maps.Keys(series)) {
		input = append(input, map[string]string{"series": name, "values": series[name]})
	}
	return map[string]any{
		"interval": "1m", "input_series": input,
		"alert_rule_test": []any{map[string]any{"eval_time": at, "alertname": alert, "exp_alerts": want}},
	}
}

// TestAlertsFire: each alert fires in a state of which it is to warn, with a summary that names the
// node, and does not in one beside it.
func TestAlertsFire(t *testing.T) {
	t.Parallel()
	tier.Slow(t, "needs promtool, which comes with a whole Prometheus")
	lab.Need(t, "promtool")
	rules := alertRules(t)
	tested := maps.Clone(alertCases)
	for _, r := range rules {
		c, ok := tested[r.Alert]
		if !ok || len(c.fires) == 0 || len(c.quiet) == 0 {
			t.Errorf("no state is known in which %s fires, and one in which it does not: add them to alertCases", r.Alert)
			continue
		}
		delete(tested, r.Alert)
		t.Run(r.Alert, func(t *testing.T) {
			t.Parallel()
			c.test(t, r)
		})
	}
	for name := range tested {
		t.Errorf("the chart has no alert %s", name)
	}
}

// test has promtool look at both states.
func (c *alertCase) test(t *testing.T, r rule) {
	labels := map[string]string{"severity": r.Labels["severity"]}
	if err := yaml.Unmarshal([]byte(c.labels), &labels); err != nil {
		t.Fatal(err)
	}
	if labels["severity"] == "" {
		t.Error("the alert has no severity")
	}
	// What promtool compares is the summary: the other annotations are checked as a whole.
	r.Annotations = map[string]string{"summary": r.Annotations["summary"]}
	dir := t.TempDir()
	write(t, dir, "rules.yaml", groups(t, []rule{r}))
	fires := []any{map[string]any{"exp_labels": labels, "exp_annotations": map[string]string{"summary": c.summary}}}
	for state, test := range map[string]map[string]any{
		"fires": alertTest(t, r.Alert, c.at, c.fires, fires), "quiet": alertTest(t, r.Alert, c.at, c.quiet, nil),
	} {
		text, err := yaml.Marshal(map[string]any{"rule_files": []string{"rules.yaml"}, "evaluation_interval": "30s", "tests": []any{test}})
		if err != nil {
			t.Fatal(err)
		}
		promtool(t, write(t, dir, state+".yaml", string(text)), "test", "rules")
	}
}

// TestPrometheusReads: Prometheus itself reads the rules with all their templates, and each query of
// the dashboard.
func TestPrometheusReads(t *testing.T) {
	t.Parallel()
	tier.Slow(t, "needs promtool, which comes with a whole Prometheus")
	lab.Need(t, "promtool")
	promtool(t, alertsFile(t), "check", "rules", "--lint-fatal")
	var records []map[string]string
	for i, query := range dashboardQueries(t, "") {
		records = append(records, map[string]string{"record": fmt.Sprintf("panel:%d", i), "expr": query})
	}
	if len(records) < 15 {
		t.Fatalf("only %d queries found", len(records))
	}
	promtool(t, write(t, t.TempDir(), "dashboard.yaml", groups(t, records)), "check", "rules", "--lint-fatal")
}

// dashboardQueries returns the queries of the dashboard, with the variables filled in as Grafana does. of is the title
// of a panel, "" for all.
func dashboardQueries(t *testing.T, of string) (list []string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(chartDir(t), "dashboards", "beeline.json"))
	if err != nil {
		t.Fatal(err)
	}
	var dashboard struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(text, &dashboard); err != nil {
		t.Fatal(err)
	}
	variables := strings.NewReplacer("$__rate_interval", "5m", "$node", ".*")
	for _, p := range dashboard.Panels {
		if of != "" && p.Title != of {
			continue
		}
		for _, target := range p.Targets {
			list = append(list, variables.Replace(target.Expr))
		}
	}
	return list
}

package differential_test

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	corev1 "k8s.io/api/core/v1"

	"github.com/beeline-lb/beeline/tests/lab"
)

const metricsAddress = "http://127.0.0.1:10249"

// testMetricsPages compares the pages beside /metrics.
func testMetricsPages(t *testing.T, r *rig) {
	r.same(t, "the metrics server lives", metricsAddress+"/healthz", says(200, "ok"))

	beeline, kubeProxy := r.eventuallyBoth("the mode", metricsAddress+"/proxyMode", says(200, ""))
	kubeProxy.body = strings.ReplaceAll(kubeProxy.body, "nftables", "beeline")
	kubeProxy.header.Set("Content-Length", "7")
	if beeline.String() != kubeProxy.String() {
		t.Errorf("/proxyMode: Beeline answers\n%s\nkube-proxy answers\n%s", beeline, kubeProxy)
	}

	beeline, kubeProxy = r.eventuallyBoth("the configuration", metricsAddress+"/configz", says(200, ""))
	var groups [2]map[string]struct{ Kind, APIVersion, HostnameOverride string }
	for i, a := range []*answer{beeline, kubeProxy} {
		r.must(json.Unmarshal([]byte(a.body), &groups[i]))
		a.header.Del("Content-Length")
		a.body = ""
	}
	const group = "kubeproxy.config.k8s.io"
	if groups[0][group] != groups[1][group] || groups[0][group].HostnameOverride != lab.NodeName {
		t.Errorf("/configz: Beeline answers %+v, kube-proxy answers %+v", groups[0], groups[1])
	}
	if beeline.String() != kubeProxy.String() {
		t.Errorf("/configz: Beeline answers\n%s\nkube-proxy answers\n%s", beeline, kubeProxy)
	}
}

// ofKubeProxy are metrics of how kube-proxy does its work, which Beeline does not have.
var ofKubeProxy = []string{
	"kubeproxy_conntrack_reconciler_deleted_entries_total",
	"kubeproxy_conntrack_reconciler_sync_duration_seconds",
	"kubeproxy_sync_full_proxy_rules_duration_seconds",
	"kubeproxy_sync_partial_proxy_rules_duration_seconds",
	"kubeproxy_sync_proxy_rules_nftables_cleanup_failures_total",
	"kubeproxy_sync_proxy_rules_nftables_sync_failures_total",
}

// testMetrics compares names, types and labels, and the values that the same changes
// give.
func testMetrics(t *testing.T, r *rig) {
	port := r.balanced("counted", corev1.IPv4Protocol)
	if port == 0 {
		t.Fatal("the Service has no health check port")
	}
	now := time.Now().Format(time.RFC3339Nano)
	r.putSlice("counted", "IPv4", map[string]string{corev1.EndpointsLastChangeTriggerTime: now}, endpoint(lab.Backend4(1), elsewhere))
	for _, page := range []string{"healthz", "livez"} {
		r.eventuallyBoth("health", "http://127.0.0.1:10256/"+page, says(200, ""))
	}
	noLocal := func(a *answer) bool {
		return value(parse(t, a), "kubeproxy_sync_proxy_rules_no_local_endpoints_total", "external", "IPv4") == 2 &&
			value(parse(t, a), "kubeproxy_network_programming_duration_seconds", "IPv4") == 1
	}
	a, b := r.eventuallyBoth("two ports without a local endpoint, one change timed", metricsAddress+"/metrics", noLocal)
	beeline, kubeProxy := parse(t, a), parse(t, b)
	for _, name := range slices.Sorted(maps.Keys(kubeProxy)) {
		if !strings.HasPrefix(name, "kubeproxy_") || slices.Contains(ofKubeProxy, name) {
			continue
		}
		have, want := beeline[name], kubeProxy[name]
		if have == nil {
			t.Errorf("%s is missing", name)
			continue
		}
		if have.GetType() != want.GetType() {
			t.Errorf("%s is a %s, want a %s", name, have.GetType(), want.GetType())
		}
		if got, want := labels(have), labels(want); !slices.Equal(got, want) {
			t.Errorf("%s has the series %q, want %q", name, got, want)
		}
		if missing := missingBuckets(have, want); missing != nil {
			t.Errorf("%s lacks the buckets %v", name, missing)
		}
	}
	for _, name := range []string{
		"kubeproxy_sync_proxy_rules_last_timestamp_seconds", "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds",
	} {
		at := time.UnixMicro(int64(value(beeline, name, "IPv4") * 1e6))
		if now := time.Now(); at.Before(r.began) || at.After(now) {
			t.Errorf("%s is %s, want it between %s and %s", name, at, r.began, now)
		}
	}
	r.putSlice("counted", "IPv4", map[string]string{corev1.EndpointsLastChangeTriggerTime: now}, endpoint(lab.Backend4(1)))
	r.eventuallyBoth("there is a local endpoint", metricsAddress+"/metrics", func(a *answer) bool {
		return value(parse(t, a), "kubeproxy_sync_proxy_rules_no_local_endpoints_total", "external", "IPv4") == 0
	})
}

func parse(t *testing.T, a *answer) map[string]*dto.MetricFamily {
	t.Helper()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(a.body))
	if err != nil {
		t.Fatal(err)
	}
	return families
}

// labels returns names and values of the labels of each series; codes of answers are
// left out, for nobody knows how often a page was asked.
func labels(f *dto.MetricFamily) (all []string) {
	for _, m := range f.GetMetric() {
		var pairs []string
		for _, l := range m.GetLabel() {
			if l.GetName() == "code" {
				l.Value = new("CODE")
			}
			pairs = append(pairs, l.GetName()+"="+l.GetValue())
		}
		all = append(all, strings.Join(pairs, ","))
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// value returns that of the series whose label values are these, the count of a
// histogram; -1 when there is none.
func value(families map[string]*dto.MetricFamily, name string, want ...string) float64 {
	for _, m := range families[name].GetMetric() {
		var values []string
		for _, l := range m.GetLabel() {
			values = append(values, l.GetValue())
		}
		slices.Sort(values)
		slices.Sort(want)
		if slices.Equal(values, want) {
			return m.GetGauge().GetValue() + m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return -1
}

// missingBuckets returns the bounds that the first series lacks, but for the 0 that
// kube-proxy has in one: no time is less.
func missingBuckets(have, want *dto.MetricFamily) (missing []float64) {
	bounds := make(map[float64]bool)
	for _, b := range have.GetMetric()[0].GetHistogram().GetBucket() {
		bounds[b.GetUpperBound()] = true
	}
	for _, b := range want.GetMetric()[0].GetHistogram().GetBucket() {
		if !bounds[b.GetUpperBound()] && b.GetUpperBound() > 0 {
			missing = append(missing, b.GetUpperBound())
		}
	}
	return missing
}

package chart_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/netip"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/beeline-lb/beeline/tests/lab"
	"github.com/beeline-lb/beeline/tests/tier"
)

const prometheusAddr = "127.0.0.1:9090"

// TestPanels: with an agent that has traffic and changes, a real Prometheus has data for each query of
// the dashboard, which counts one agent.
func TestPanels(t *testing.T) {
	t.Parallel()
	tier.Slow(t, "needs Prometheus")
	lab.Need(t, "prometheus")
	h := lab.NewHost(t)
	h.ServeBackends()
	s := h.NewStandalone(lab.Service("web", `{clusterIP: 10.96.0.1, ports: [{port: 80}]}`))
	s.Write("slice.yaml", changedSlice(1))
	s.Start("--service-metrics-limit=10", "--traffic-sampling=1")
	dir := t.TempDir()
	config := write(t, dir, "prometheus.yaml", `global: {scrape_interval: 500ms}
scrape_configs: [{job_name: beeline, static_configs: [{targets: ["127.0.0.1:10249"], labels: {node: a}}]}]
`)
	h.Start("prometheus", "--config.file="+config, "--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+prometheusAddr)
	var missing []string
	defer func() {
		if t.Failed() {
			t.Logf("no data for:\n%s", strings.Join(missing, "\n"))
		}
	}()
	queries, client, changes := dashboardQueries(t, ""), h.HTTPClient(), 1
	lab.Eventually(t, "each panel has data", func() bool {
		changes++
		s.Write("slice.yaml", changedSlice(1+changes%2))
		makeTraffic(h)
		missing = nil
		for _, query := range queries {
			if _, err := ask(client, query); err != nil {
				missing = append(missing, fmt.Sprintf("%s: %v", query, err))
			}
		}
		return len(missing) == 0
	})
	for _, query := range dashboardQueries(t, "Agents") {
		if got, err := ask(client, query); err != nil || !slices.Equal(got, []float64{1}) {
			t.Errorf("%s: %v, %v; want 1", query, got, err)
		}
	}
}

// changedSlice is a slice of the Service that was changed now.
func changedSlice(backend int) string {
	slice := lab.Slice("web", "8080/TCP", lab.Backend4(backend))
	now := time.Now().UTC().Format(time.RFC3339Nano)
	return strings.Replace(slice, "metadata:", fmt.Sprintf("metadata:\n  annotations: {%s: %q}", corev1.EndpointsLastChangeTriggerTime, now), 1)
}

// makeTraffic connects to the Service and to a port that it has not, and asks for the agent's health.
// Whether that works is for other tests to say.
func makeTraffic(h *lab.Host) {
	for _, port := range []uint16{80, 81} {
		_, _ = h.Reach("tcp4", netip.AddrPortFrom(netip.MustParseAddr("10.96.0.1"), port))
	}
	for _, page := range []string{"healthz", "livez"} {
		if r, err := h.HTTPClient().Get("http://127.0.0.1:10256/" + page); err == nil {
			r.Body.Close()
		}
	}
}

// ask asks Prometheus for values. The error says that there are none, or why.
func ask(client *http.Client, query string) (values []float64, err error) {
	r, err := client.Get("http://" + prometheusAddr + "/api/v1/query?query=" + url.QueryEscape(query))
	if err != nil {
		return nil, err
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	var answer struct {
		Error string
		Data  struct{ Result []struct{ Value [2]any } }
	}
	if err := json.Unmarshal(text, &answer); err != nil || answer.Error != "" {
		return nil, fmt.Errorf("%s", text)
	}
	for _, series := range answer.Data.Result {
		value, err := strconv.ParseFloat(fmt.Sprint(series.Value[1]), 64)
		if err == nil && !math.IsNaN(value) {
			values = append(values, value)
		}
	}
	if len(values) == 0 {
		return nil, errors.New("no value")
	}
	return values, nil
}

package chart_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/VictoriaMetrics/metricsql"
	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"github.com/prometheus/client_golang/prometheus/collectors"
	corev1 "k8s.io/api/core/v1"

	"github.com/beeline-lb/beeline/tests/registry"
)

// expressions returns every query of the alerts and of the dashboard, by where it is.
func expressions(t *testing.T) map[string]string {
	t.Helper()
	rendered, err := newHelm(t, "").template(onNode + matrix["monitoring"])
	if err != nil {
		t.Fatal(err)
	}
	objects := decode(t, rendered)
	found := make(map[string]string)
	for _, group := range find[*monitoringv1.PrometheusRule](t, objects, nil).Spec.Groups {
		for _, rule := range group.Rules {
			found["alert "+rule.Alert] = rule.Expr.StrVal
		}
	}
	var dashboard struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	m := find(t, objects, func(m *corev1.ConfigMap) bool { return m.Labels["grafana_dashboard"] != "" })
	if err := json.Unmarshal([]byte(m.Data["beeline.json"]), &dashboard); err != nil {
		t.Fatal(err)
	}
	for _, panel := range dashboard.Panels {
		for _, target := range panel.Targets {
			found["panel "+panel.Title+" "+target.Expr] = strings.ReplaceAll(target.Expr, "$__rate_interval", "5m")
		}
	}
	return found
}

// others are metrics that other programs export.
var others = map[string]bool{"kube_node_info": true}

// TestQueries: each query can be parsed and asks for metrics that there are.
func TestQueries(t *testing.T) {
	t.Parallel()
	known := registry.Agent()
	known.MustRegister(collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	queries := expressions(t)
	if len(queries) < 20 {
		t.Fatalf("only %d queries found", len(queries))
	}
	for where, query := range queries {
		parsed, err := metricsql.Parse(query)
		if err != nil {
			t.Errorf("%s: %v", where, err)
			continue
		}
		metricsql.VisitAll(parsed, func(e metricsql.Expr) {
			m, ok := e.(*metricsql.MetricExpr)
			if !ok {
				return
			}
			name := m.LabelFilterss[0][0].Value
			_, ok = known[name]
			_, base := known[strings.TrimSuffix(name, "_bucket")]
			if !ok && !base && !others[name] {
				t.Errorf("%s: the agent exports no %s", where, name)
			}
		})
	}
}

// Package metrics exports what the agent and its datapath do. What kube-proxy has a
// metric of is exported under the same name (kubeproxy_*), so that dashboards and
// alerts go on working; what only Beeline has is called beeline_*.
package metrics

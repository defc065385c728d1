// Package metrics exports the Prometheus metrics of the agent and its datapath. Those
// that kube-proxy has keep its names (kubeproxy_*), so that dashboards and alerts go on
// working; those of Beeline alone are called beeline_*.
//
// It exports more than 25 names because each part of the agent has a collector of its own.
package metrics

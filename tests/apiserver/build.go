package apiserver

import (
	"context"

	"github.com/beeline-lb/beeline/tests/programs"
)

// Build returns the folder of etcd, kube-apiserver and kube-proxy, built when the
// cache holds none of these versions.
func Build(ctx context.Context) (string, error) {
	return programs.Kubernetes.Build(ctx)
}

package main

import (
	"errors"
	"os"
	"strconv"

	"k8s.io/klog/v2"

	"github.com/beeline-lb/beeline/pkg/config"
	"github.com/beeline-lb/beeline/pkg/conntrack"
)

// tuneHost makes settings of the host that kube-proxy makes, too. The agent serves as
// well without, so what cannot be set, as in a container that may not, is only logged.
func tuneHost(c *config.Settings) {
	score := strconv.Itoa(int(*c.KubeProxy.OOMScoreAdj))
	if err := os.WriteFile("/proc/self/oom_score_adj", []byte(score), 0); err != nil {
		klog.InfoS("OOM score stays as it is", "wanted", score, "err", err)
	}
	if c.Netfilter == (conntrack.Settings{}) {
		return
	}
	changed, err := conntrack.ThisHost.Apply(c.Netfilter)
	if len(changed) > 0 {
		klog.InfoS("Connection tracking set", "changed", changed)
	}
	switch {
	case errors.Is(err, conntrack.ErrNotLoaded):
		klog.V(2).InfoS("Connection tracking is not loaded, nothing to set")
	case err != nil:
		klog.InfoS("Connection tracking stays as it is in part", "err", err)
	}
}

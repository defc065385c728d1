package config

import (
	"net/netip"
	"time"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/conntrack"
	"github.com/beeline-lb/beeline/pkg/datapath"
	"github.com/beeline-lb/beeline/pkg/flow"
	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/policy"
	"github.com/beeline-lb/beeline/pkg/source/convert"
	"github.com/beeline-lb/beeline/pkg/tables"
)

// Settings are a configuration, checked and understood.
type Settings struct {
	*Config

	// NodeName is the name of the Node object.
	NodeName string
	// NodeAddrs are the node's own IPs, one of a family at most. Those of the other
	// families are the Node object's.
	NodeAddrs []netip.Addr
	// NodePorts says where NodePorts answer.
	NodePorts policy.NodePortAddresses
	// ServiceRanges are the CIDRs of cluster IPs.
	ServiceRanges []netip.Prefix
	// NodePortMin and NodePortMax bound the NodePorts of manifests, both included.
	NodePortMin, NodePortMax uint16
	// PodRanges are the CIDRs of pods.
	PodRanges []netip.Prefix
	// Internal says which packets come from inside the cluster. With the local mode
	// NodeCIDR its CIDRs are those of the Node object.
	Internal datapath.Internal

	// Algorithm is that of Services which name none.
	Algorithm model.Algorithm

	// Outliers is the outlier detection of Services which name none.
	Outliers model.Outliers
	// Allowed is what Services may ask for.
	Allowed convert.Allowed

	// Forwarding is how packets of Services which do not say it reach backends on other
	// nodes.
	Forwarding model.Forwarding
	// TunnelPort is the UDP port of the tunnel; 0: this node has no tunnel.
	TunnelPort uint16
	// SpillOverPort is the UDP port of the agents that ask each other for active connections.
	SpillOverPort uint16

	// SNATPortMin and SNATPortMax bound the source ports of SNAT, both included.
	SNATPortMin, SNATPortMax uint16
	// MasqueradeAll makes SNAT of connections to backends on this node, too.
	MasqueradeAll bool

	// AcceptForwarded lets connections of Services through a firewall that drops what
	// the node passes on.
	AcceptForwarded bool

	// Sizes are the sizes of the tables.
	Sizes bpfmap.Sizes
	// SizedBy says what the size of the flow table follows from.
	SizedBy string
	// MemoryLimit is that of the agent's cgroup, bytes; 0 is none.
	MemoryLimit uint64
	// Bounds keep one tenant from taking the tables' room.
	Bounds tables.Bounds
	// Timeouts are how long flows may be idle.
	Timeouts flow.Timeouts

	// Netfilter is how netfilter is to track connections.
	Netfilter conntrack.Settings

	// SyncPeriod is half the time that a change may wait before the agent counts as
	// unhealthy.
	SyncPeriod time.Duration
	// MinSyncPeriod is the shortest time between two syncs.
	MinSyncPeriod time.Duration

	// MetricServices are the Services that have metrics of their own first.
	MetricServices []model.Name

	// HealthzAddress, MetricsAddress and WebAddress are the servers' addresses; "" is none.
	HealthzAddress, MetricsAddress, WebAddress string
}

// Settings checks the configuration. The error names everything that is wrong, each
// with the flag, or the file and the field, and what is allowed.
func (c *Config) Settings() (*Settings, error) {
	s := &Settings{Config: c}
	kubeProxy, beeline := field.NewPath(KubeProxyKind), field.NewPath(BeelineKind)
	var errs field.ErrorList
	errs = append(errs, s.setSource(beeline.Child("manifests"))...)
	errs = append(errs, s.setNode(kubeProxy, beeline)...)
	errs = append(errs, s.setServers(kubeProxy, beeline)...)
	errs = append(errs, s.setPeriods(kubeProxy)...)
	errs = append(errs, s.setPods(kubeProxy)...)
	errs = append(errs, s.setTimeouts(kubeProxy.Child("conntrack"), beeline.Child("flowTimeouts"))...)
	errs = append(errs, checkKubeProxy(&c.KubeProxy, kubeProxy)...)
	errs = append(errs, s.setDatapath(beeline)...)
	errs = append(errs, s.setSizes(beeline.Child("tables"))...)
	errs = append(errs, s.setAlgorithm(beeline)...)
	errs = append(errs, s.setAllowed(beeline.Child("allowedAnnotations"))...)
	errs = append(errs, s.setOutliers(beeline.Child("outlierDetection"))...)
	errs = append(errs, s.setForwarding(beeline)...)
	errs = append(errs, s.setSpillOver(beeline.Child("zoneSpillOverPort"))...)
	errs = append(errs, s.setServiceMetrics(beeline.Child("serviceMetrics"))...)
	if len(errs) > 0 {
		return nil, c.origin.explain(errs)
	}
	s.Netfilter = s.netfilter()
	return s, nil
}

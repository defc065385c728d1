package config

import (
	"net"
	"net/netip"
	"slices"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	logsapi "k8s.io/component-base/logs/api/v1"

	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/datapath"
	"github.com/beeline-lb/beeline/pkg/flow"
	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/source/convert"
)

// The ports that kube-proxy serves health and metrics on.
const (
	healthzPort = 10256
	metricsPort = 10249
)

// WebPort is the port of the web page, of the agent and of the command.
const WebPort = 10245

// The sizes of connection tracking that kube-proxy asks for.
const (
	defaultConntrackMaxPerCore = 32 * 1024
	defaultConntrackMin        = 128 * 1024
)

// defaultMinSyncPeriod is kube-proxy's for iptables and nftables.
const defaultMinSyncPeriod = time.Second

// defaultDSRPort is none that a tunnel of a CNI uses.
const defaultDSRPort = 6091

const defaultZoneSpillOverPort = 6092

// setDefaults sets what is not given to its default, where that does not depend on
// other fields.
func (c *Config) setDefaults() {
	setKubeProxyDefaults(&c.KubeProxy)
	setBeelineDefaults(&c.Beeline)
}

// setKubeProxyDefaults sets the fields that Beeline honours to kube-proxy's defaults,
// but for minSyncPeriod, which remains 0 and means at once: a change costs the same
// however many Services there are.
func setKubeProxyDefaults(k *KubeProxyConfiguration) {
	k.APIVersion, k.Kind = kubeProxyAPIVersion, KubeProxyKind
	fill(&k.BindAddress, "0.0.0.0")
	fill(&k.DetectLocalMode, LocalModeClusterCIDR)
	fill(&k.ConfigSyncPeriod.Duration, 15*time.Minute)
	fill(&k.ClientConnection.ContentType, "application/vnd.kubernetes.protobuf")
	fill(&k.ClientConnection.QPS, 5)
	fill(&k.ClientConnection.Burst, 10)
	for _, period := range []*metav1.Duration{&k.IPTables.SyncPeriod, &k.IPVS.SyncPeriod, &k.NFTables.SyncPeriod} {
		fill(&period.Duration, 30*time.Second)
	}
	fillPointer(&k.OOMScoreAdj, -999)
	fillPointer(&k.IPTables.LocalhostNodePorts, true)
	fillPointer(&k.IPTables.MasqueradeBit, 14)
	fillPointer(&k.NFTables.MasqueradeBit, 14)
	fillPointer(&k.Conntrack.MaxPerCore, defaultConntrackMaxPerCore)
	fillPointer(&k.Conntrack.Min, defaultConntrackMin)
	fillPointer(&k.Conntrack.TCPEstablishedTimeout, metav1.Duration{Duration: 24 * time.Hour})
	fillPointer(&k.Conntrack.TCPCloseWaitTimeout, metav1.Duration{Duration: time.Hour})
	logsapi.SetRecommendedLoggingConfiguration(&k.Logging)
}

func setBeelineDefaults(b *BeelineConfiguration) {
	b.APIVersion, b.Kind = BeelineAPIVersion, BeelineKind
	fill(&b.StateDir, "/var/lib/beeline")
	fill(&b.ServiceNodePortRange, "30000-32767")
	fillPointer(&b.DSRPort, defaultDSRPort)
	fillPointer(&b.DSRClampMSS, true)
	fill(&b.ZoneSpillOverPort, defaultZoneSpillOverPort)
	fill(&b.SocketLB, SocketLBAll)
	fill(&b.XDP, string(datapath.XDPOff))
	fill(&b.TCMode, string(datapath.TCAuto))
	fill(&b.AcceptForwarded, AcceptForwardedAuto)
	fill(&b.SNATPortRange, "1024-65535")
	fill(&b.BPFFS, datapath.DefaultBPFFS)
	if len(b.Devices) == 0 {
		b.Devices = []string{datapath.DevicesAuto}
	}
	if b.OutlierDetection == "" {
		b.OutlierDetection = model.Outliers{}.String()
	}
	if len(b.AllowedAnnotations) == 0 {
		b.AllowedAnnotations = slices.Clone(convert.DefaultAnnotations)
	}
	sizes, t := bpfmap.DefaultSizes, &b.Tables
	fill(&t.MaxFrontends, sizes.Frontends)
	fill(&t.MaxServices, sizes.Services)
	fill(&t.MaxBackends, sizes.Backends)
	fill(&t.MaxSlots, sizes.Slots)
	fill(&t.MaxSourceRanges, sizes.SourceRanges)
	times, f := flow.DefaultTimeouts, &b.FlowTimeouts
	fill(&f.TCPSynSent.Duration, times.TCPSynSent)
	fill(&f.TCPSynReceived.Duration, times.TCPSynReceived)
	fill(&f.TCPClose.Duration, times.TCPClose)
	fill(&f.SCTP.Duration, times.SCTP)
	fill(&f.SCTPStream.Duration, times.SCTPStream)
}

// setDependentDefaults sets what depends on other fields. The servers listen on
// addresses of the family of bindAddress where none is given, and on kube-proxy's port
// where only an IP is. The mode nftables leaves NodePorts closed on all addresses but
// the node's own.
func (c *Config) setDependentDefaults() {
	k := &c.KubeProxy
	if k.Mode == "nftables" && len(k.NodePortAddresses) == 0 {
		k.NodePortAddresses = []string{"primary"}
	}
	all, local := "0.0.0.0", "127.0.0.1"
	if bind, err := netip.ParseAddr(k.BindAddress); err == nil && bind.Is6() && !bind.Is4In6() {
		all, local = "::", "::1"
	}
	fill(&k.HealthzBindAddress, all)
	fill(&k.MetricsBindAddress, local)
	k.HealthzBindAddress = withPort(k.HealthzBindAddress, healthzPort)
	k.MetricsBindAddress = withPort(k.MetricsBindAddress, metricsPort)
	c.Beeline.WebBindAddress = withPort(c.Beeline.WebBindAddress, WebPort)
}

// withPort returns an address with the port when it is an IP alone.
func withPort(address string, port int) string {
	if _, err := netip.ParseAddr(address); err != nil {
		return address
	}
	return net.JoinHostPort(address, strconv.Itoa(port))
}

// fill sets a field that has its type's zero value.
func fill[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// fillPointer sets a field that is nil.
func fillPointer[T any](field **T, value T) {
	if *field == nil {
		*field = &value
	}
}

package config

import (
	"runtime"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	kubeproxyconfig "k8s.io/kube-proxy/config/v1alpha1"

	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/flow"
)

// maxTracked is the most connections that kube-proxy asks netfilter to track for
// maxPerCore.
const maxTracked = 1 << 20

// ConntrackMax returns how many connections netfilter is to track on this machine, by
// kube-proxy's rule; 0 leaves the limit as it is.
func ConntrackMax(c *kubeproxyconfig.KubeProxyConntrackConfiguration, cores int) int {
	if *c.MaxPerCore == 0 {
		return 0
	}
	scaled := int(*c.MaxPerCore) * cores
	if scaled > maxTracked {
		return maxTracked
	}
	return max(scaled, int(*c.Min))
}

// flowEntries returns the size of the flow table where it is not given. It is that of
// connection tracking only where somebody has chosen that: unlike netfilter's table the
// kernel makes this one in full at once, and only clients outside of the node use it.
func flowEntries(c *kubeproxyconfig.KubeProxyConntrackConfiguration) uint32 {
	tracked := min(ConntrackMax(c, runtime.NumCPU()), maxTracked)
	if tracked == 0 || *c.MaxPerCore == defaultConntrackMaxPerCore && *c.Min == defaultConntrackMin {
		return bpfmap.DefaultSizes.Flows
	}
	return uint32(2 * tracked)
}

// setTimeouts sets how long flows may be idle. 0 in kube-proxy's section leaves the
// kernel's default.
func (s *Settings) setTimeouts(conntrack, flows *field.Path) field.ErrorList {
	var errs field.ErrorList
	set := func(path *field.Path, to *time.Duration, d metav1.Duration) {
		switch {
		case d.Duration == 0:
		case d.Duration < time.Second:
			errs = append(errs, field.Invalid(path, d.Duration.String(), "must be at least 1s, or 0 for the kernel's default"))
		default:
			*to = d.Duration
		}
	}
	t, k, b := &s.Timeouts, &s.KubeProxy.Conntrack, &s.Beeline.FlowTimeouts
	*t = flow.DefaultTimeouts
	set(conntrack.Child("tcpEstablishedTimeout"), &t.TCPEstablished, *k.TCPEstablishedTimeout)
	set(conntrack.Child("tcpCloseWaitTimeout"), &t.TCPCloseWait, *k.TCPCloseWaitTimeout)
	set(conntrack.Child("udpTimeout"), &t.UDP, k.UDPTimeout)
	set(conntrack.Child("udpStreamTimeout"), &t.UDPStream, k.UDPStreamTimeout)
	set(flows.Child("tcpSynSent"), &t.TCPSynSent, b.TCPSynSent)
	set(flows.Child("tcpSynReceived"), &t.TCPSynReceived, b.TCPSynReceived)
	set(flows.Child("tcpClose"), &t.TCPClose, b.TCPClose)
	set(flows.Child("sctp"), &t.SCTP, b.SCTP)
	set(flows.Child("sctpStream"), &t.SCTPStream, b.SCTPStream)
	return errs
}

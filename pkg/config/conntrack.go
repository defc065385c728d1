package config

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	kubeproxyconfig "k8s.io/kube-proxy/config/v1alpha1"

	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/conntrack"
	"github.com/beeline-lb/beeline/pkg/flow"
)

// maxTracked is the most connections that kube-proxy asks netfilter to track for
// maxPerCore.
const maxTracked = 1 << 20

// trackedMax returns how many connections netfilter is to track on a machine, by
// kube-proxy's rule; 0 leaves the limit as it is.
func trackedMax(c *kubeproxyconfig.KubeProxyConntrackConfiguration, cores int) int {
	if *c.MaxPerCore == 0 {
		return 0
	}
	scaled := int(*c.MaxPerCore) * cores
	if scaled > maxTracked {
		return maxTracked
	}
	return max(scaled, int(*c.Min))
}

// flowEntries returns the size of the flow table where connection tracking says it, else 0.
// It does only where its size was configured: unlike netfilter's table the kernel makes
// this one in full at once, and only clients outside of the node use it.
func flowEntries(c *kubeproxyconfig.KubeProxyConntrackConfiguration) uint32 {
	if *c.MaxPerCore == defaultConntrackMaxPerCore && *c.Min == defaultConntrackMin {
		return 0
	}
	tracked := min(trackedMax(c, bpfmap.CPUs()), maxTracked)
	if tracked <= 0 {
		return 0
	}
	return uint32(2 * tracked)
}

// netfilter returns how netfilter is to track connections. A host that serves no
// cluster is left as it is.
func (s *Settings) netfilter() conntrack.Settings {
	if s.Beeline.Manifests != "" {
		return conntrack.Settings{}
	}
	c := &s.KubeProxy.Conntrack
	return conntrack.Settings{
		Max:            trackedMax(c, bpfmap.CPUs()),
		TCPEstablished: c.TCPEstablishedTimeout.Duration,
		TCPCloseWait:   c.TCPCloseWaitTimeout.Duration,
		UDP:            c.UDPTimeout.Duration,
		UDPStream:      c.UDPStreamTimeout.Duration,
		TCPBeLiberal:   c.TCPBeLiberal,
	}
}

// setTimeouts sets how long flows may be idle. 0 in kube-proxy's section leaves the
// kernel's default.
func (s *Settings) setTimeouts(kubeProxy, beeline *field.Path) field.ErrorList {
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
	set(kubeProxy.Child("tcpEstablishedTimeout"), &t.TCPEstablished, *k.TCPEstablishedTimeout)
	set(kubeProxy.Child("tcpCloseWaitTimeout"), &t.TCPCloseWait, *k.TCPCloseWaitTimeout)
	set(kubeProxy.Child("udpTimeout"), &t.UDP, k.UDPTimeout)
	set(kubeProxy.Child("udpStreamTimeout"), &t.UDPStream, k.UDPStreamTimeout)
	set(beeline.Child("tcpSynSent"), &t.TCPSynSent, b.TCPSynSent)
	set(beeline.Child("tcpSynReceived"), &t.TCPSynReceived, b.TCPSynReceived)
	set(beeline.Child("tcpClose"), &t.TCPClose, b.TCPClose)
	set(beeline.Child("sctp"), &t.SCTP, b.SCTP)
	set(beeline.Child("sctpStream"), &t.SCTPStream, b.SCTPStream)
	return errs
}

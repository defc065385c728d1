package flow

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/pflag"

	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/model"
)

// Timeouts are how long a flow may be idle before it is forgotten. The names and
// values are those of nf_conntrack's settings.
type Timeouts struct {
	TCPSynSent     time.Duration
	TCPSynReceived time.Duration
	TCPEstablished time.Duration
	TCPCloseWait   time.Duration // one side has sent FIN
	TCPClose       time.Duration // both sides have, or one has sent RST
	UDP            time.Duration // no reply yet
	UDPStream      time.Duration // replied to
	SCTP           time.Duration // no reply yet
	SCTPStream     time.Duration // replied to
}

// DefaultTimeouts are nf_conntrack's: nf_conntrack_tcp_timeout_syn_sent, _syn_recv,
// _established, _fin_wait and _close, nf_conntrack_udp_timeout and _stream, and for
// SCTP the 210 s of an established association.
var DefaultTimeouts = Timeouts{
	TCPSynSent:     120 * time.Second,
	TCPSynReceived: 60 * time.Second,
	TCPEstablished: 432000 * time.Second,
	TCPCloseWait:   120 * time.Second,
	TCPClose:       10 * time.Second,
	UDP:            30 * time.Second,
	UDPStream:      120 * time.Second,
	SCTP:           30 * time.Second,
	SCTPStream:     210 * time.Second,
}

// setting is a timeout that has a flag.
type setting struct {
	flag  string
	usage string
	field func(*Timeouts) *time.Duration
}

// settings have kube-proxy's flag names. As there, 0 does not change the default.
var settings = []setting{
	{"conntrack-tcp-timeout-established", "idle time after which a TCP connection of a client outside of the node is forgotten; 0 is the default",
		func(t *Timeouts) *time.Duration { return &t.TCPEstablished }},
	{"conntrack-tcp-timeout-close-wait", "the same for a connection that one side has closed; 0 is the default",
		func(t *Timeouts) *time.Duration { return &t.TCPCloseWait }},
	{"conntrack-udp-timeout", "the same for UDP packets that were not replied to; 0 is the default",
		func(t *Timeouts) *time.Duration { return &t.UDP }},
	{"conntrack-udp-timeout-stream", "the same for UDP packets that were replied to; 0 is the default",
		func(t *Timeouts) *time.Duration { return &t.UDPStream }},
}

// AddFlags adds the flags, with the present values as defaults.
func (t *Timeouts) AddFlags(f *pflag.FlagSet) {
	for _, s := range settings {
		f.DurationVar(s.field(t), s.flag, *s.field(t), s.usage)
	}
}

// Check refuses what can be no timeout; the error names each flag.
func (t *Timeouts) Check() error {
	var errs []error
	for _, s := range settings {
		if d := *s.field(t); d != 0 && d < time.Second {
			errs = append(errs, fmt.Errorf("--%s: %v is less than 1s", s.flag, d))
		}
	}
	return errors.Join(errs...)
}

// fill sets the timeouts that are 0 and have a flag to their defaults.
func (t *Timeouts) fill() {
	for _, s := range settings {
		if d := s.field(t); *d == 0 {
			*d = *s.field(&DefaultTimeouts)
		}
	}
}

// of returns how long a flow may be idle.
func (t *Timeouts) of(protocol model.Protocol, state bpfmap.FlowState) time.Duration {
	switch protocol {
	case model.TCP:
		return t.tcp(state)
	case model.SCTP:
		if state == bpfmap.FlowNew {
			return t.SCTP
		}
		return t.SCTPStream
	}
	if state == bpfmap.FlowNew {
		return t.UDP
	}
	return t.UDPStream
}

func (t *Timeouts) tcp(state bpfmap.FlowState) time.Duration {
	switch state {
	case bpfmap.FlowNew:
		return t.TCPSynSent
	case bpfmap.FlowSynReceived:
		return t.TCPSynReceived
	case bpfmap.FlowEstablished:
		return t.TCPEstablished
	case bpfmap.FlowClosing:
		return t.TCPCloseWait
	}
	return t.TCPClose
}

package flow

import (
	"time"

	"github.com/beeline-lb/beeline/pkg/flowmap"
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
	UDP            time.Duration // no reply yet, or the client has not gone on after it
	UDPStream      time.Duration // the client has
	SCTP           time.Duration // the same for associations
	SCTPStream     time.Duration
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

// of returns how long a flow may be idle.
func (t *Timeouts) of(protocol model.Protocol, state flowmap.State) time.Duration {
	switch protocol {
	case model.TCP:
		return t.tcp(state)
	case model.SCTP:
		if state.HalfOpen() {
			return t.SCTP
		}
		return t.SCTPStream
	}
	if state.HalfOpen() {
		return t.UDP
	}
	return t.UDPStream
}

func (t *Timeouts) tcp(state flowmap.State) time.Duration {
	switch state {
	case flowmap.StateNew:
		return t.TCPSynSent
	case flowmap.StateSynReceived:
		return t.TCPSynReceived
	case flowmap.StateEstablished:
		return t.TCPEstablished
	case flowmap.StateClientClosing, flowmap.StateBackendClosing:
		return t.TCPCloseWait
	}
	return t.TCPClose
}

package statusmap

import (
	"sync/atomic"
	"time"

	"github.com/beeline-lb/beeline/pkg/bpf"
)

// Agent is the agent's record of itself.
type Agent struct {
	PID     int
	Started time.Time
	Synced  time.Time // of the last sync; zero is never
	Syncs   uint64    // since Started
	Pending uint64    // Services whose last sync failed
	Version string
	Node    string
	Source  string // where Services come from
	Cgroup  string // path of the cgroup whose sockets are served
	SizedBy string // what the sizes of the tables follow from
	// Evicted are the flows that the kernel has taken out of a full table since Started, as
	// far as is known.
	Evicted Evicted
	// TunnelPort is the UDP port of the tunnel; 0: the node has no tunnel.
	TunnelPort uint16
	// KeepsSockets: the kernel cannot destroy connected UDP sockets whose endpoint is gone.
	KeepsSockets bool
	// EventsWait: Kubernetes events about Services have not been sent yet.
	EventsWait bool
}

// Evicted counts flows that were taken out of a full table.
type Evicted struct {
	Established, HalfOpen uint64
	// Last is when an established one was noticed last; zero is never.
	Last time.Time
}

// SetEvicted stores the flows evicted since the agent's start.
func (t Table) SetEvicted(v Evicted) {
	e := t.maps.Entries.Agent
	atomic.StoreUint64(&e.EvictedEstablished, v.Established)
	atomic.StoreUint64(&e.EvictedHalfOpen, v.HalfOpen)
	if !v.Last.IsZero() {
		atomic.StoreUint64(&e.Evicted, uint64(v.Last.UnixNano()))
	}
}

// SetAgent stores the agent's record.
func (t Table) SetAgent(a Agent) {
	e := t.maps.Entries.Agent
	e.Pid = uint32(a.PID)
	e.Started = uint64(a.Started.UnixNano())
	e.TunnelPort, e.Flags = a.TunnelPort, 0
	if a.KeepsSockets {
		e.Flags |= uint16(bpf.SockBlAgentFlagBL_AGENT_KEEPS_SOCKETS)
	}
	bpf.PutString(e.Version[:], a.Version)
	bpf.PutString(e.Node[:], a.Node)
	bpf.PutString(e.Source[:], a.Source)
	bpf.PutString(e.Cgroup[:], a.Cgroup)
	bpf.PutString(e.SizedBy[:], a.SizedBy)
	e.Synced, e.Syncs, e.Pending = 0, 0, 0
	e.EvictedEstablished, e.EvictedHalfOpen, e.Evicted = 0, 0, 0
}

// SetEventsWait notes whether events about Services have not been sent yet. It is not to be called
// beside [Table.SetAgent], nor several times at once.
func (t Table) SetEventsWait(wait bool) {
	const flag = uint16(bpf.SockBlAgentFlagBL_AGENT_EVENTS_WAIT)
	e := t.maps.Entries.Agent
	if e.Flags &^= flag; wait {
		e.Flags |= flag
	}
}

// SetSynced notes the end of a sync after which pending Services wait for a retry.
func (t Table) SetSynced(at time.Time, pending int) {
	e := t.maps.Entries.Agent
	atomic.StoreUint64(&e.Synced, uint64(at.UnixNano()))
	atomic.AddUint64(&e.Syncs, 1)
	atomic.StoreUint64(&e.Pending, uint64(pending))
}

// Agent returns what the agent, running or not, told of itself last.
func (t Table) Agent() Agent {
	e := t.maps.Entries.Agent
	a := Agent{
		PID:     int(e.Pid),
		Started: time.Unix(0, int64(e.Started)),
		Syncs:   atomic.LoadUint64(&e.Syncs),
		Pending: atomic.LoadUint64(&e.Pending),
		Version: bpf.StringOf(e.Version[:]),
		Node:    bpf.StringOf(e.Node[:]),
		Source:  bpf.StringOf(e.Source[:]),
		Cgroup:  bpf.StringOf(e.Cgroup[:]),
		SizedBy: bpf.StringOf(e.SizedBy[:]),
		Evicted: Evicted{
			Established: atomic.LoadUint64(&e.EvictedEstablished),
			HalfOpen:    atomic.LoadUint64(&e.EvictedHalfOpen),
		},

		TunnelPort:   e.TunnelPort,
		KeepsSockets: e.Flags&uint16(bpf.SockBlAgentFlagBL_AGENT_KEEPS_SOCKETS) != 0,
		EventsWait:   e.Flags&uint16(bpf.SockBlAgentFlagBL_AGENT_EVENTS_WAIT) != 0,
	}
	if evicted := atomic.LoadUint64(&e.Evicted); evicted != 0 {
		a.Evicted.Last = time.Unix(0, int64(evicted))
	}
	if synced := atomic.LoadUint64(&e.Synced); synced != 0 {
		a.Synced = time.Unix(0, int64(synced))
	}
	return a
}

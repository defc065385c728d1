// Package explain asks the programs' own steps what would happen to a connection: by test runs of
// programs that are made of the same sources, over the pinned maps, or copies of those that the
// steps write to. Nothing of the node changes, and no agent need run.
package explain

import (
	"errors"
	"net/netip"

	"github.com/cilium/ebpf"

	"github.com/beeline-lb/beeline/pkg/bpf"
	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/datapath"
)

// Programs answer. They are loaded when they are asked first.
type Programs struct {
	bpffs          string
	maps           *bpfmap.Maps
	socket, packet *object
}

// New returns programs over the maps, which are pinned below a BPF file system.
func New(m *bpfmap.Maps, bpffs string) *Programs { return &Programs{bpffs: bpffs, maps: m} }

// Close unloads the programs.
func (p *Programs) Close() error { return errors.Join(p.socket.close(), p.packet.close()) }

// Question is a new connection.
type Question struct {
	// From is, of a socket, what it is bound to: port 0 and the any-address, or no address, when
	// it is not.
	From, To netip.AddrPort
	Protocol uint8 // IPPROTO_TCP, UDP or SCTP
}

// Answer is what would happen. Counted are the counters that would move.
type Answer struct {
	bpf.SockBlExplainEntry
	Counted []bpf.SockBlReason
}

// Has reports whether a step was taken.
func (a *Answer) Has(step bpf.SockBlExplainStep) bool { return a.Steps&uint32(step) != 0 }

func (q *Question) query() bpf.SockBlExplainQuery {
	query := bpf.SockBlExplainQuery{
		Dst: bpf.AddrOf(q.To.Addr()), DstPort: bpf.Hton16(q.To.Port()),
		SrcPort: bpf.Hton16(q.From.Port()), Proto: q.Protocol,
	}
	from := q.From.Addr()
	if q.To.Addr().Unmap().Is4() {
		query.Ipv4 = 1
		if !from.IsValid() {
			from = netip.IPv4Unspecified()
		}
	}
	if from.IsValid() {
		query.Src = bpf.AddrOf(from)
	}
	return query
}

// Socket answers for a socket in the calling thread's network namespace, whose cookie is given.
func (p *Programs) Socket(q Question, netns uint64) (*Answer, error) {
	if err := p.load(&p.socket, bpf.ExplainSocketProgBlExplainSocket, bpf.LoadExplainSocket, datapath.SocketConstants); err != nil {
		return nil, err
	}
	query := q.query()
	query.Netns = netns
	return p.socket.ask(&query, 0)
}

// Packet answers for a packet at a device of the calling thread's network namespace: one that comes in by
// it, where it faces clients or other nodes or is the host's side of a pod's, or one of this node itself
// that leaves by it.
func (p *Programs) Packet(q Question, ifindex int, hook bpf.SockBlHook) (*Answer, error) {
	if err := p.load(&p.packet, bpf.ExplainPacketProgBlExplainPacket, bpf.LoadExplainPacket, datapath.DeviceConstants); err != nil {
		return nil, err
	}
	query := q.query()
	query.Hook = uint8(hook)
	return p.packet.ask(&query, ifindex)
}

// load loads a program that answers, unless it is, with the constants of those that serve.
func (p *Programs) load(o **object, name string, read func() (*ebpf.CollectionSpec, error), constants func(bpffs string) (map[string][]byte, error)) error {
	if *o != nil {
		return nil
	}
	values, err := constants(p.bpffs)
	if err != nil {
		return err
	}
	*o, err = load(p.maps, name, read, values)
	return err
}

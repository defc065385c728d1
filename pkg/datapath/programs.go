package datapath

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/bpf"
	"github.com/beeline-lb/beeline/pkg/bpfmap"
)

// Constants are set in the programs when they are loaded.
type Constants struct {
	// HostNetns is the cookie of the network namespace that is the node's.
	HostNetns uint64
	// HostSocketsOnly leaves the sockets of other network namespaces alone.
	HostSocketsOnly bool
	// LeaveNAT leaves the sockets of network namespaces alone that translate their own
	// connections, of those in [devicemap.Table.NAT].
	LeaveNAT bool
	// Seed sets where the choice of backends starts; it should differ between
	// nodes.
	Seed uint32
	// Sent is the number by which the programs at egress know packets that those at ingress have
	// sent, and leave them alone; nobody must be able to guess it. 0: they look at each.
	Sent uint64
	// UDPPeerIdle is how long an idle unconnected UDP socket keeps its backend; 0
	// is the default.
	UDPPeerIdle time.Duration
	// LocalityIdle is when a server of lblc that got no connection is forgotten,
	// and one of several servers of lblcr is taken back; 0: no Service has these.
	LocalityIdle time.Duration
	// SNATPortMin and SNATPortMax bound the source ports of SNAT, both included;
	// both 0 is the default.
	SNATPortMin, SNATPortMax uint16
	// MasqueradeAll gives packets to backends on this node a source address of the
	// node, see [devicemap.Table.SetMasquerade].
	MasqueradeAll bool
	// ForwardMark is the bit that packets to a backend on this node are marked with; 0
	// is none.
	ForwardMark uint32
	// TunnelPort is the UDP port of the tunnel; 0 is no tunnel.
	TunnelPort uint16
	// TunnelClamp lowers the MSS of TCP connections that come by the tunnel to what fits
	// into it.
	TunnelClamp bool
	// TrafficSampling is the number of flows of which one has its packets counted; 0: none has.
	TrafficSampling uint32
	// ICMPRate is how many ICMP errors that say no size are sent in a second at most, by each load of the
	// programs; nil: any number.
	ICMPRate *uint32
	// XDPGeneric is for XDP programs that run where the kernel receives packets, not in
	// a driver.
	XDPGeneric bool
}

// secret returns a number that nobody can guess, not 0.
func secret() uint64 {
	var b [8]byte
	rand.Read(b[:])
	return binary.NativeEndian.Uint64(b[:]) | 1
}

// set fills in the variables that a program object has.
func (c *Constants) set(m *bpfmap.Maps, variables map[string]*ebpf.VariableSpec) error {
	values := map[string]any{
		bpf.SockVarBlHostNetns:       c.HostNetns,
		bpf.SockVarBlHostSocketsOnly: c.HostSocketsOnly,
		bpf.SockVarBlLeaveNat:        c.LeaveNAT,
		bpf.SockVarBlLocalityIdle:    uint64(c.LocalityIdle),
		bpf.SockVarBlSeed:            c.Seed,
		bpf.SockVarBlTunnelPort:      c.TunnelPort,
		bpf.SockVarBlTunnelClamp:     c.TunnelClamp,
		bpf.TcVarBlSent:              c.Sent,
		bpf.TcVarBlMasqueradeAll:     c.MasqueradeAll,
		bpf.TcVarBlForwardMark:       c.ForwardMark,
		bpf.TcVarBlTrafficSampling:   c.TrafficSampling,
		bpf.XdpVarBlXdpGeneric:       c.XDPGeneric,
		bpf.TcVarBlHalfOpenMax:       m.MaxHalfOpen(),
		bpf.TcVarBlFlowMoves:         m.FormerFlow() != nil,
	}
	if v := variables[bpf.TcVarBlConntrack]; v != nil {
		values[bpf.TcVarBlConntrack] = HaveConntrack()
	}
	if v := variables[bpf.SockVarBlMayReadKernel]; v != nil {
		values[bpf.SockVarBlMayReadKernel] = MayReadKernel()
	}
	if c.UDPPeerIdle != 0 {
		values[bpf.SockVarBlUdpPeerIdle] = uint64(c.UDPPeerIdle)
	}
	if c.ICMPRate != nil {
		values[bpf.TcVarBlAnswerLimit] = icmpLimit(*c.ICMPRate)
	}
	if c.SNATPortMax != 0 {
		values[bpf.TcVarBlSnatPortMin], values[bpf.TcVarBlSnatPortMax] = c.SNATPortMin, c.SNATPortMax
	}
	for name, value := range values {
		if v := variables[name]; v != nil {
			if err := v.Set(value); err != nil {
				return fmt.Errorf("set constant %s: %w", name, err)
			}
		}
	}
	return nil
}

// LoadSockets loads the programs for sockets over the maps.
func LoadSockets(m *bpfmap.Maps, c Constants) (*bpf.SockPrograms, error) {
	spec, options, err := Spec(m, c, bpf.LoadSock)
	programs := new(bpf.SockPrograms)
	if err == nil {
		lookup.Lock()
		defer lookup.Unlock()
		err = spec.LoadAndAssign(programs, options)
	}
	if err != nil {
		return nil, fmt.Errorf("load the programs for sockets: %w", err)
	}
	return programs, nil
}

// LoadUDPService loads the program that [bpf.UDPService] asks, over the maps. It goes on to answer when these are
// removed.
func LoadUDPService(m *bpfmap.Maps) (*ebpf.Program, error) {
	spec, options, err := Spec(m, Constants{}, bpf.LoadSock)
	var programs map[string]*ebpf.Program
	if err == nil {
		programs, err = loadSome(spec, options, bpf.SockProgBlUdpService)
	}
	if err != nil {
		return nil, fmt.Errorf("load the program that knows the sockets of Services: %w", err)
	}
	return programs[bpf.SockProgBlUdpService], nil
}

// LoadDevices loads the programs for packets of devices over the maps: those of the names,
// or all when there is none. The result is by name.
func LoadDevices(m *bpfmap.Maps, c Constants, names ...string) (map[string]*ebpf.Program, error) {
	spec, options, err := Spec(m, c, bpf.LoadTc)
	var programs map[string]*ebpf.Program
	if err == nil {
		programs, err = loadSome(spec, options, names...)
	}
	if err != nil {
		return nil, fmt.Errorf("load the programs for devices: %w", err)
	}
	return programs, nil
}

// LoadXDP loads the program for packets at the lowest level of a device over the
// maps.
func LoadXDP(m *bpfmap.Maps, c Constants) (*ebpf.Program, error) {
	return loadXDP(m, c, bpf.XdpProgBlXdp, nil)
}

// LoadXDPBelow loads the program that takes no frame for one of the device that it comes
// in by, but for one of those that [devicemap.Table.SetFrames] says.
func LoadXDPBelow(m *bpfmap.Maps, c Constants) (*ebpf.Program, error) {
	return loadXDP(m, c, bpf.XdpProgBlXdpBelow, nil)
}

// loadXDPPart loads the program of [LoadXDP], or of [LoadXDPBelow], to be run in
// place of a function of another XDP program.
func loadXDPPart(m *bpfmap.Maps, c Constants, below bool, target *ebpf.Program, function string) (*ebpf.Program, error) {
	name := bpf.XdpProgBlXdp
	if below {
		name = bpf.XdpProgBlXdpBelow
	}
	return loadXDP(m, c, name, func(spec *ebpf.ProgramSpec) {
		spec.Type, spec.AttachType = ebpf.Extension, ebpf.AttachNone
		spec.AttachTarget, spec.AttachTo = target, function
		spec.Flags &^= unix.BPF_F_XDP_HAS_FRAGS // a matter of the target
	})
}

// loadXDP loads one program of the object, changed by change unless that is nil.
func loadXDP(m *bpfmap.Maps, c Constants, name string, change func(*ebpf.ProgramSpec)) (*ebpf.Program, error) {
	spec, options, err := Spec(m, c, bpf.LoadXdp)
	if err != nil {
		return nil, fmt.Errorf("load the XDP program: %w", err)
	}
	if c.XDPGeneric {
		// For a program that takes several buffers, Linux 6.9 and newer copies packets
		// and forgets how long the Ethernet header is (mac_len of the skb): those that
		// pass would come to tc without it. For others it makes one buffer of them.
		spec.Programs[name].Flags &^= unix.BPF_F_XDP_HAS_FRAGS
	}
	if change != nil {
		change(spec.Programs[name])
	}
	programs, err := loadSome(spec, options, name)
	if err != nil {
		return nil, fmt.Errorf("load the XDP program: %w", err)
	}
	return programs[name], nil
}

// loadSome loads the programs of the names, or all when there is none: the kernel takes long to
// check them. The result is by name.
func loadSome(spec *ebpf.CollectionSpec, options *ebpf.CollectionOptions, names ...string) (map[string]*ebpf.Program, error) {
	if len(names) > 0 {
		maps.DeleteFunc(spec.Programs, func(name string, _ *ebpf.ProgramSpec) bool { return !slices.Contains(names, name) })
	}
	for _, p := range spec.Programs {
		leaveRoom(p)
	}
	lookup.Lock()
	defer lookup.Unlock()
	coll, err := ebpf.NewCollectionWithOptions(spec, *options)
	if err != nil {
		return nil, err
	}
	defer coll.Close()
	programs := coll.Programs
	coll.Programs = nil // kept
	return programs, nil
}

// Spec reads an object and sets its constants, those that follow from the maps and the kernel
// among them. The options are for loading it over the maps.
func Spec(m *bpfmap.Maps, c Constants, read func() (*ebpf.CollectionSpec, error)) (*ebpf.CollectionSpec, *ebpf.CollectionOptions, error) {
	spec, err := read()
	if err != nil {
		return nil, nil, err
	}
	bpf.DirectValues(spec)
	if err := c.set(m, spec.Variables); err != nil {
		return nil, nil, err
	}
	if s := spec.Maps[bpf.TcMapBlFragment]; s != nil {
		s.MaxEntries = max(s.MaxEntries, bpfmap.LeastLRU())
	}
	replaced := m.Replacements()
	maps.DeleteFunc(replaced, func(name string, _ *ebpf.Map) bool { return spec.Maps[name] == nil })
	for name, kernelMap := range replaced {
		spec.Maps[name].MaxEntries = kernelMap.MaxEntries()
	}
	return spec, &ebpf.CollectionOptions{MapReplacements: replaced, Cache: kernelTypes()}, nil
}

// room is how many instructions the kernel may put into a program of a number of them: those of a
// lookup in place of its call, for example.
func room(instructions int) int { return instructions/10 + 64 }

// leaveRoom puts instructions that are never reached before a program. The kernel takes them out
// when it has checked it, before it puts others in. Linux 6.18 copies all it knows about a
// program, a hundred bytes an instruction, each time it outgrows its pages: without room for
// that, copying takes as long as all else.
func leaveRoom(p *ebpf.ProgramSpec) {
	first := &p.Instructions[0]
	skip := asm.JEq.Imm(asm.R0, 0, "")
	skip.Offset = int16(room(len(p.Instructions)))
	before := asm.Instructions{asm.Mov.Imm(asm.R0, 0).WithMetadata(first.Metadata), skip}
	for range skip.Offset {
		before = append(before, asm.Mov.Imm(asm.R0, 0))
	}
	first.Metadata = asm.Metadata{} // the name and types of the program are those of its first instruction
	p.Instructions = append(before, p.Instructions...)
}

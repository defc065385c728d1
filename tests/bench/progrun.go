package main

import (
	"fmt"
	"math"
	"net"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
)

// verdicts are what programs of a kind return.
type verdicts struct {
	passes uint32
	sends  uint32 // by the device that the packet came in by
	empty  uint32 // of the program that does nothing
	floor  uint32
}

var (
	// linux/pkt_cls.h: TC_ACT_UNSPEC, TC_ACT_REDIRECT, TC_ACT_OK.
	tcVerdicts = verdicts{passes: ^uint32(0), sends: 7}
	// linux/bpf.h: XDP_PASS, XDP_TX.
	xdpVerdicts = verdicts{passes: 2, sends: 3, empty: 2, floor: 3}
)

// tcDrops is TC_ACT_SHOT of linux/pkt_cls.h.
const tcDrops = 2

// Packets that differ have ports from firstPort on; after so many ports the next ones
// have another address. They are those that flows keep: the ports behind are remapped.
const (
	firstPort = 1024
	ports     = 32768 - firstPort
)

// The ports that flows get instead of one that is taken: few, so that replies to all can be sent.
const (
	snatPort  = 61000
	snatPorts = 1<<16 - snatPort
)

// sent is what a packet has that the program at ingress has sent.
const sent = 1<<63 | 1

// anyVerdict is that of runs of which some pass and some are sent.
const anyVerdict = 1 << 16

// runner runs packet programs without a device, each time on the same packet.
type runner struct {
	packetsObjects
	verdicts
	// mac is the device's address: tc leaves frames for others alone.
	mac     net.HardwareAddr
	context any
	loaded  map[*ebpf.Program]uint32
}

// tcContext is the beginning of struct __sk_buff.
type tcContext struct {
	_              [9]uint32
	IngressIfindex uint32
	Ifindex        uint32
}

// xdpContext is struct xdp_md.
type xdpContext struct {
	Data, DataEnd, DataMeta, Ingress, Queue, Egress uint32
}

// newRunner makes a runner of packets that come in by a device to tc. It is good
// until the process ends.
func newRunner(ifindex int) (*runner, error) {
	r := &runner{
		verdicts: tcVerdicts,
		context:  tcContext{IngressIfindex: uint32(ifindex), Ifindex: uint32(ifindex)},
		loaded:   make(map[*ebpf.Program]uint32),
	}
	device, err := netlink.LinkByIndex(ifindex)
	if err != nil {
		return nil, err
	}
	r.mac = device.Attrs().HardwareAddr
	if err := loadPacketsObjects(&r.packetsObjects, nil); err != nil {
		return nil, fmt.Errorf("load the programs to measure with: %w", err)
	}
	return r, nil
}

// newXDPRunner is newRunner for XDP.
func newXDPRunner(ifindex int) (*runner, error) {
	r := &runner{
		verdicts: xdpVerdicts,
		context:  xdpContext{DataEnd: frameSize, Ingress: uint32(ifindex)},
		loaded:   make(map[*ebpf.Program]uint32),
	}
	spec, err := loadXdp()
	if err != nil {
		return nil, err
	}
	// Programs and maps are called as those for tc.
	if err := spec.LoadAndAssign(&r.packetsObjects, nil); err != nil {
		return nil, fmt.Errorf("load the programs to measure XDP with: %w", err)
	}
	return r, nil
}

// run is a program that is measured with a packet.
type run struct {
	program *ebpf.Program
	packet  frame
	verdict uint32
	// fresh counts the runs so far and gives each one's packet another source. nil
	// leaves the packet alone.
	fresh *uint32
	// sent says that the program at ingress has sent the packet.
	sent bool
	// turns is how many packets take turns; 0 gives each run one of its own.
	turns uint32
	// toPort says that the packets differ by the port that they go to instead, snat that
	// these are the ports of SNAT.
	toPort, snat bool
}

// set makes r the one that is run.
func (r *runner) set(what run) error {
	copy(what.packet, r.mac)
	index, ok := r.loaded[what.program]
	if !ok {
		index = uint32(len(r.loaded))
		if err := r.BlBenchNext.Put(index, what.program); err != nil {
			return fmt.Errorf("add a program to measure: %w", err)
		}
		r.loaded[what.program] = index
	}
	now := packetsBlBenchCase{Program: index}
	copy(now.Packet[:], what.packet)
	if what.sent {
		now.Cb = [2]uint32{sent >> 32, sent & math.MaxUint32}
	}
	if what.fresh != nil {
		now.Runs, now.Turns = *what.fresh, what.turns
		now.PortMin, now.Ports = firstPort, ports
		if what.snat {
			now.PortMin, now.Ports = snatPort, snatPorts
		}
		now.PortAt, now.AddrAt = uint32(what.packet.transport()), uint32(what.packet.sourceEnd()-2)
		if what.toPort {
			now.PortAt, now.AddrAt = now.PortAt+2, 0
		}
	}
	return r.BlBenchNow.Put(uint32(0), &now)
}

// once runs the program once and returns what it made of the packet.
func (r *runner) once(what run) (frame, error) {
	if err := r.set(what); err != nil {
		return nil, err
	}
	out := make(frame, frameSize+256)
	options := &ebpf.RunOptions{Data: what.packet, DataOut: out, Context: r.context}
	if err := r.check(what, options); err != nil {
		return nil, err
	}
	return frame(options.DataOut), nil
}

// time runs the program again and again, and returns the CPU time of a run, ns.
func (r *runner) time(what run, repeat uint32) (float64, error) {
	if err := r.set(what); err != nil {
		return 0, err
	}
	if what.fresh != nil {
		*what.fresh += repeat
	}
	start := threadTime()
	err := r.check(what, &ebpf.RunOptions{Data: what.packet, Context: r.context, Repeat: repeat})
	return float64(threadTime()-start) / float64(repeat), err
}

func (r *runner) check(what run, options *ebpf.RunOptions) error {
	verdict, err := r.BlBenchRun.Run(options)
	if err != nil {
		return err
	}
	if verdict != what.verdict && what.verdict != anyVerdict {
		return fmt.Errorf("the verdict is %d, want %d", int32(verdict), int32(what.verdict))
	}
	return nil
}

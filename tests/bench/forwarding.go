package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
)

const (
	// datagramSize is BL_BENCH_DATAGRAM.
	datagramSize     = 64
	forwardingRounds = 40
	forwardingBatch  = 2048
	// forwardingFlows is how many source ports take turns.
	forwardingFlows = 256
	// forwardingTries is how often a batch is repeated that other threads had a part in.
	forwardingTries = 200
)

// beelineXDP is a node on which Beeline runs XDP as well.
const beelineXDP = "beeline-xdp"

// forwarders are what the nodes are served by. The first ones serve connections, too.
var forwarders = []string{beeline, "iptables", "nftables", beelineXDP, plain}

// datagrams is the Service that is sent to.
var datagrams = backend{"datagrams", "another machine", lanFar, 32003, corev1.ProtocolUDP}

func forwardingKey(name string) string { return "forwarding/" + name }

// sender sends datagrams in the place of a machine beside the nodes.
//
// The kernel takes frames from a program as if they had come in by a device, and sends
// them on to the nodes' ends of the wire. They are forwarded in the same thread, up to
// the wire's other end, where a program counts and drops them. So the thread's CPU time
// is that of one core for all of it.
type sender struct {
	xdpObjects
	ifindex int // the frames come in by it
}

// measureForwarding measures what a packet costs a node.
func (l *lan) measureForwarding(ctx context.Context, s samples) error {
	if err := quiet(); err != nil {
		return err
	}
	sender, err := l.newSender()
	if err != nil {
		return err
	}
	client := netip.AddrPortFrom(lanClient.Addr(), firstPort)
	none := datagram(l.nodes[0].mac, client, netip.AddrPortFrom(lanFar.Addr(), 1))
	list := []contestant{{"sender", func() (float64, error) { return sender.time(0, none) }}}
	for i, name := range forwarders {
		to, port := lanNode(i).Addr(), datagrams.nodePort
		if name == plain {
			to, port = datagrams.addr.Addr(), endpointPort
		}
		wire, err := netlink.LinkByName(l.nodes[i].port)
		if err != nil {
			return err
		}
		packet := datagram(l.nodes[i].mac, client, netip.AddrPortFrom(to, port))
		if err := sender.await(ctx, wire.Attrs().Index, packet); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		list = append(list, contestant{name, func() (float64, error) { return sender.time(wire.Attrs().Index, packet) }})
	}
	return interleave(ctx, forwardingRounds, list, func(m measured) {
		rate := func(name string) float64 { return 1e3 / (m[name] - m["sender"]) }
		for _, name := range forwarders {
			s.add(forwardingKey(name), rate(name))
		}
		s.add(forwardingKey("against"), rate(beelineXDP)/max(rate("iptables"), rate("nftables")))
		s.add(forwardingKey("against/plain"), rate(beelineXDP)/rate(plain))
	})
}

// newSender makes the nodes ready to be sent to, and puts the program that counts at
// the other ends of their wires.
func (l *lan) newSender() (*sender, error) {
	s := new(sender)
	if err := loadXdpObjects(&s.xdpObjects, nil); err != nil {
		return nil, fmt.Errorf("load the programs to send with: %w", err)
	}
	keep = append(keep, s)
	neighbour := netlink.Neigh{State: netlink.NUD_PERMANENT, IP: lanFar.Addr().AsSlice(), HardwareAddr: l.farHost.mac}
	for i, node := range l.nodes {
		wire, err := netlink.LinkByName(node.port)
		if err != nil {
			return nil, err
		}
		s.ifindex = wire.Attrs().Index
		sink, err := link.AttachXDP(link.XDPOptions{Program: s.BlBenchSink, Interface: s.ifindex, Flags: link.XDPDriverMode})
		if err != nil {
			return nil, fmt.Errorf("count what comes from node %d: %w", i, err)
		}
		keep = append(keep, sink)
		err = node.do(func() error {
			uplink, err := netlink.LinkByName("uplink")
			if err != nil {
				return err
			}
			neighbour.LinkIndex = uplink.Attrs().Index
			return errors.Join(netlink.NeighSet(&neighbour), setGRO("uplink"))
		})
		if err != nil {
			return nil, fmt.Errorf("node %d: %w", i, err)
		}
	}
	return s, nil
}

// setGRO makes a veth device take frames that XDP sends to it, by ioctl
// SIOCETHTOOL(ETHTOOL_SGRO).
func setGRO(device string) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	value := struct{ command, data uint32 }{unix.ETHTOOL_SGRO, 1}
	request := struct {
		name  [unix.IFNAMSIZ]byte
		value unsafe.Pointer
		_     [16]byte
	}{value: unsafe.Pointer(&value)}
	copy(request.name[:], device)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&request))); errno != 0 {
		return fmt.Errorf("turn GRO of %s on: %w", device, errno)
	}
	return nil
}

// datagram returns a frame of [datagramSize], without a UDP checksum.
func datagram(mac net.HardwareAddr, from, to netip.AddrPort) frame {
	f := newUDP(from, to)[:datagramSize]
	copy(f, mac)
	ip, udp := f[ethernetSize:], f[f.transport():]
	if f.ipv4() {
		binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)))
		binary.BigEndian.PutUint16(ip[10:], 0)
		binary.BigEndian.PutUint16(ip[10:], checksum(ip[:ipv4Size]))
	} else {
		binary.BigEndian.PutUint16(ip[4:], uint16(len(ip)-ipv6Size))
	}
	binary.BigEndian.PutUint16(udp[4:], uint16(len(udp)))
	binary.BigEndian.PutUint16(udp[6:], 0)
	return f
}

// checksum returns that of IP (RFC 1071) for data of an even length.
func checksum(data []byte) uint16 {
	sum := uint32(0)
	for ; len(data) > 0; data = data[2:] {
		sum += uint32(binary.BigEndian.Uint16(data))
	}
	sum = sum&0xffff + sum>>16
	return ^uint16(sum + sum>>16)
}

// await waits until what is sent comes out again.
func (s *sender) await(ctx context.Context, ifindex int, packet frame) error {
	for start := time.Now(); ; {
		arrived, _, err := s.send(ifindex, packet, forwardingFlows)
		if err != nil || arrived.All == forwardingFlows {
			return err
		}
		if time.Since(start) > proxyTimeout {
			return fmt.Errorf("%d of %d datagrams are forwarded", arrived.All, forwardingFlows)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// time returns the CPU time of a packet, ns. 0 for ifindex sends nothing.
func (s *sender) time(ifindex int, packet frame) (float64, error) {
	var arrived xdpBlBenchArrivals
	for range forwardingTries {
		var took int64
		var err error
		if arrived, took, err = s.send(ifindex, packet, forwardingBatch); err != nil {
			return 0, err
		}
		if ifindex == 0 || arrived.All >= forwardingBatch*99/100 && arrived.Apart <= forwardingBatch/100 {
			return float64(took) / forwardingBatch, nil
		}
	}
	return 0, fmt.Errorf("of %d datagrams %d are forwarded, %d of them by another thread", forwardingBatch, arrived.All, arrived.Apart)
}

// send sends a batch and returns what came out, and the CPU time of this thread.
func (s *sender) send(ifindex int, packet frame, count uint32) (arrived xdpBlBenchArrivals, took int64, err error) {
	now := xdpBlBenchCase{
		PortAt: uint32(packet.transport()), PortMin: firstPort, Turns: forwardingFlows, Ifindex: uint32(ifindex),
	}
	copy(now.Packet[:], packet)
	if err := errors.Join(s.BlBenchNow.Put(uint32(0), &now), s.BlBenchArrived.Put(uint32(0), &arrived)); err != nil {
		return arrived, 0, err
	}
	const liveFrames = 1 << 1 // linux/bpf.h: BPF_F_TEST_XDP_LIVE_FRAMES
	start := threadTime()
	_, err = s.BlBenchSend.Run(&ebpf.RunOptions{
		Data: packet, Context: xdpContext{DataEnd: uint32(len(packet)), Ingress: uint32(s.ifindex)},
		Repeat: count, Flags: liveFrames,
	})
	took = threadTime() - start
	if err != nil {
		return arrived, 0, fmt.Errorf("send datagrams: %w", err)
	}
	return arrived, took, s.BlBenchArrived.Lookup(uint32(0), &arrived)
}

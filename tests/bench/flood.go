package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

	"github.com/beeline-lb/beeline/pkg/model"
)

const (
	floodRounds = 20
	floodBatch  = 1 << 15
	// floodCounted is how many batches are sent to one listener, to see that it hears or counts each drop.
	floodCounted = 10
)

// measureFlood measures what packets cost that come in by the wire and are dropped, and what a listener
// adds.
func measureFlood(ctx context.Context, box *sandbox) ([]samples, error) {
	b, _, err := servePackets(ctx, box, newPacketBench)
	if err != nil {
		return nil, err
	}
	send, err := newFlood(b.ingress)
	if err != nil {
		return nil, err
	}
	l := &listeners{maps: b.maps}
	runs, err := measureFamilies(func(s samples, family model.Family) error {
		packet := datagram(send.mac, outsider(family), netip.AddrPortFrom(b.node[family], localNodePort))
		return errors.Join(l.flood(ctx, s, send, packet, family), l.counts(s, send, packet, family))
	})
	return runs, errors.Join(err, l.listen(nobody))
}

// flood sends frames to a device of this namespace, by the other end of its wire.
type flood struct {
	sender
	mac net.HardwareAddr
}

// newFlood makes a program run on what the uplink receives.
func newFlood(ingress *ebpf.Program) (*flood, error) {
	uplink, err := packetUplink()
	if err != nil {
		return nil, err
	}
	wire, err := netlink.LinkByName("nobody")
	if err != nil {
		return nil, err
	}
	f := &flood{sender{ifindex: wire.Attrs().Index}, uplink.Attrs().HardwareAddr}
	if err := loadXdpObjects(&f.xdpObjects, nil); err != nil {
		return nil, fmt.Errorf("load the programs to send with: %w", err)
	}
	hook, err := link.AttachTCX(link.TCXOptions{Interface: uplink.Attrs().Index, Program: ingress, Attach: ebpf.AttachTCXIngress})
	if err != nil {
		return nil, fmt.Errorf("attach to the uplink: %w", err)
	}
	keep = append(keep, f, hook)
	return f, setGRO(uplink.Attrs().Name)
}

// flood measures the thread's CPU time, sending included in all.
func (l *listeners) flood(ctx context.Context, s samples, send *flood, packet frame, family model.Family) error {
	list := append(l.contestants(func() (float64, error) { return send.cost(send.ifindex, packet) }),
		contestant{"sender", func() (float64, error) { return send.cost(0, packet) }})
	return interleave(ctx, floodRounds, list, func(m measured) {
		alone := m[nobody] - m["sender"]
		s.add(of("monitor/flood/rate", family), 1e3/alone)
		s.add(of("monitor/flood/limit", family), alone/(m[atLimit]-m["sender"]))
		s.add(of("monitor/flood/all", family), alone/(m[toldAll]-m["sender"]))
	})
}

// cost sends a batch, and returns the CPU time of a packet, ns.
func (f *flood) cost(ifindex int, packet frame) (float64, error) {
	_, took, err := f.send(ifindex, packet, floodBatch)
	return float64(took) / floodBatch, err
}

// counts measures how many drops a listener at its limit hears of or counts.
func (l *listeners) counts(s samples, send *flood, packet frame, family model.Family) error {
	if err := l.listen(atLimit); err != nil {
		return err
	}
	for range floodCounted {
		if _, err := send.cost(send.ifindex, packet); err != nil {
			return err
		}
	}
	told, err := l.drain()
	if err != nil {
		return err
	}
	left, err := l.now.LeftOut()
	if err != nil {
		return err
	}
	s.add(of("monitor/flood/counted", family), (float64(told)+float64(left))/(floodCounted*floodBatch))
	s.add(of("monitor/flood/told", family), float64(told)/(floodCounted*floodBatch))
	return nil
}

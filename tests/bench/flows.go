package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"github.com/beeline-lb/beeline/pkg/bpf"
	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/datapath"
	"github.com/beeline-lb/beeline/pkg/flowmap"
	"github.com/beeline-lb/beeline/pkg/model"
)

const (
	// concurrent is how many flows take turns.
	concurrent = 1 << 16
	// handshakes is how many of them are half-open at a time.
	handshakes = 1 << 13
)

// measureXDPFlows measures packets of many known flows that take turns, beside a floor
// whose one lookup is in a table of as many.
func measureXDPFlows(ctx context.Context, box *sandbox) ([]samples, error) {
	cgroup, err := box.subgroup(beeline)
	if err != nil {
		return nil, err
	}
	sizes := bpfmap.DefaultSizes
	sizes.Flows = 8 * concurrent // two entries each, of both families, and room to spare
	d, err := serveWith(ctx, datapath.Options{BPFFS: box.bpffs, Cgroup: cgroup, Sizes: sizes}, packetServices())
	if err != nil {
		return nil, err
	}
	b, err := newXDPBench(d.Maps())
	if err != nil {
		return nil, err
	}
	return measureFamilies(func(s samples, family model.Family) error { return b.measureMany(ctx, s, d.Maps(), family) })
}

func (b *packetBench) measureMany(ctx context.Context, s samples, maps *bpfmap.Maps, family model.Family) error {
	client, node := outsider(family), netip.AddrPortFrom(b.node[family], packetNodePort)
	flow := run{program: b.ingress, packet: newTCP(client, node, tcpACK), verdict: b.sends, fresh: new(uint32), turns: concurrent}
	if err := b.establishMany(flow, family); err != nil {
		return err
	}
	if err := countEstablished(maps, client.Addr().Is4()); err != nil {
		return err
	}
	keys, err := b.teachFloor(flow.packet)
	if err != nil {
		return err
	}
	empty, floor := flow, flow
	empty.program, empty.verdict = b.BlBenchEmpty, b.empty
	floor.program, floor.verdict = b.BlBenchFloor, b.verdicts.floor
	runs := map[string]run{"empty": empty, "floor": floor, "flow": flow}
	b.rounds, b.batch = xdpRounds/2, concurrent
	err = interleave(ctx, b.rounds, b.contestants(runs), func(m measured) {
		floor, flow := m["floor"]-m["empty"], m["flow"]-m["empty"]
		s.add(of("xdp/flows/floor", family), floor)
		s.add(of("xdp/flows/flow", family), flow)
		s.add(of("xdp/flows/flow/floors", family), flow/floor)
	})
	if err != nil {
		return err
	}
	_, err = b.BlBenchFlow.BatchDelete(keys, nil)
	return err
}

// establishMany makes the connections of all packets of a run, some at a time.
func (b *packetBench) establishMany(flow run, family model.Family) error {
	client, node := flow.packet.source(), flow.packet.destination()
	l := load{endpoints: destinations}
	syn := flow
	syn.packet = newTCP(client, node, tcpSYN)
	for first := uint32(0); first < concurrent; first += handshakes {
		steps := []run{syn}
		for e := range l.endpoints {
			backend := netip.AddrPortFrom(l.endpoint(packetService, e, family), endpointPort)
			// The client's port is kept, or it is one of SNAT. Replies that are of no flow pass.
			reply := run{
				program: b.ingress, packet: newTCP(backend, netip.AddrPortFrom(node.Addr(), 0), tcpSYN|tcpACK),
				verdict: anyVerdict, toPort: true,
			}
			steps = append(steps, reply)
			reply.snat = true
			steps = append(steps, reply)
		}
		for _, step := range append(steps, flow) {
			at := first
			step.fresh = &at
			if _, err := b.time(step, handshakes); err != nil {
				return fmt.Errorf("connections from the %dth: %w", first, err)
			}
		}
	}
	return nil
}

// countEstablished returns an error when there are much fewer connections than there
// are packets to take turns. Some have got another port than their client's.
func countEstablished(maps *bpfmap.Maps, ipv4 bool) error {
	established := 0
	for batch, err := range flowmap.New(maps).Batches(bpf.Clock) {
		if err != nil {
			return err
		}
		for _, f := range batch.Flows {
			if f.Client.Addr().Is4() == ipv4 && f.State == flowmap.StateEstablished {
				established++
			}
		}
	}
	if established < concurrent*98/100 {
		return fmt.Errorf("only %d of %d connections are established", established, concurrent)
	}
	return nil
}

// teachFloor fills the floor's table with what the packets of a run are looked up by.
func (b *packetBench) teachFloor(packet frame) ([]packetsBlFlowKey, error) {
	keys := make([]packetsBlFlowKey, concurrent)
	rewrites := make([]packetsBlBenchRewrite, concurrent)
	packet = slices.Clone(packet)
	for i := range keys {
		binary.BigEndian.PutUint16(packet[packet.transport():], uint16(firstPort+i%ports))
		binary.BigEndian.PutUint16(packet[packet.sourceEnd()-2:], uint16(i/ports))
		keys[i], rewrites[i] = floorEntry(packet)
	}
	if _, err := b.BlBenchFlow.BatchUpdate(keys, rewrites, nil); err != nil {
		return nil, fmt.Errorf("fill the floor's table: %w", err)
	}
	return keys, nil
}

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/datapath"
	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/source"
)

// tablePacket is a packet that is measured with large and with small tables.
type tablePacket struct{ name, title string }

var tablePackets = []tablePacket{
	{"none/udp", "UDP packet, no Service"},
	{"flow", "known flow to another node"},
	{"reply", "reply from another node"},
	{"new", "new flow to another node"},
}

func (p tablePacket) key() string { return "xdp/tables/" + p.name }

// The tables that are compared: of 50,000 Services of both families, with as many slots
// as they have endpoints, and of the two that are used.
const (
	largeTables = "large"
	smallTables = "small"
)

func tableServices(size string) source.Update {
	l := load{services: 50000, endpoints: 5, protocol: model.TCP}
	u := l.update()
	u.PutServices[packetService].Ports[0].NodePort = packetNodePort
	if size == largeTables {
		return u
	}
	const first, end = stickyPacketService, packetService + 1
	return source.Update{
		PutServices: u.PutServices[first:end],
		PutSlices:   u.PutSlices[first*len(model.Families) : end*len(model.Families)],
	}
}

// measureXDPTables measures the XDP program over large tables, and over small ones
// beside it.
func measureXDPTables(ctx context.Context, box *sandbox) ([]samples, error) {
	benches := make(map[string]*packetBench)
	for _, size := range []string{largeTables, smallTables} {
		cgroup, err := box.subgroup(size)
		if err != nil {
			return nil, err
		}
		bpffs := filepath.Join(box.bpffs, size)
		if err := os.Mkdir(bpffs, 0o700); err != nil {
			return nil, err
		}
		d, err := serveWith(ctx, datapath.Options{BPFFS: bpffs, Cgroup: cgroup, Sizes: bpfmap.DefaultSizes}, tableServices(size))
		if err != nil {
			return nil, fmt.Errorf("%s tables: %w", size, err)
		}
		if benches[size], err = newXDPBench(d.Maps()); err != nil {
			return nil, err
		}
	}
	return measureFamilies(func(s samples, family model.Family) error { return compareTables(ctx, s, benches, family) })
}

func compareTables(ctx context.Context, s samples, benches map[string]*packetBench, family model.Family) error {
	var list []contestant
	for size, b := range benches {
		runs, err := b.known(family)
		if err != nil {
			return fmt.Errorf("%s tables: %w", size, err)
		}
		fresh := b.fresh(family, runs)
		if err := b.fill(fresh["new"]); err != nil {
			return fmt.Errorf("%s tables: %w", size, err)
		}
		runs = map[string]run{
			"empty": runs["empty"], "none/udp": runs["none/udp"], "flow": runs["flow"], "reply": runs["reply"],
			"new/empty": fresh["empty"], "new": fresh["new"],
		}
		for _, c := range b.contestants(runs) {
			list = append(list, contestant{size + c.name, c.once})
		}
	}
	return interleave(ctx, xdpRounds/2, list, func(m measured) {
		for _, p := range tablePackets {
			empty := "empty"
			if p.name == "new" {
				empty = "new/empty"
			}
			net := func(size string) float64 { return m[size+p.name] - m[size+empty] }
			s.add(of(p.key(), family), net(largeTables)/net(smallTables))
		}
	})
}

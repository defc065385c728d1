package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/bpf"
	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/datapath"
	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/monitor"
)

const (
	monitorRounds = 200
	monitorBatch  = 2000
	// monitorRate is that of beeline monitor.
	monitorRate = 1000
)

// The listeners that are compared.
const (
	nobody  = "nobody"
	atLimit = "limit" // one that may have a thousand events a second, of some millions
	toldAll = "all"   // one that is told everything
)

// listeners measures with each listener; they take turns in listening.
type listeners struct {
	maps *bpfmap.Maps
	now  *monitor.Listener
}

// listen makes the listener the only one.
func (l *listeners) listen(name string) error {
	if l.now != nil {
		if err := l.now.Close(); err != nil {
			return err
		}
		l.now = nil
	}
	if name == nobody {
		return nil
	}
	o := monitor.Options{Rate: monitorRate}
	if name == toldAll {
		o = monitor.Options{Rate: 1 << 30, Buffer: 64 << 20} // of every batch
	}
	var err error
	l.now, err = monitor.Listen(l.maps, o)
	return err
}

// drain reads what the listener was told.
func (l *listeners) drain() (told int, err error) {
	for l.now.SetDeadline(time.Now()); ; told++ {
		if _, err := l.now.Read(); errors.Is(err, os.ErrDeadlineExceeded) {
			return told, nil
		} else if err != nil {
			return told, err
		}
	}
}

// contestants are a measurement under each listener. A listener at its limit is at it when the
// time begins.
func (l *listeners) contestants(once func() (float64, error)) (list []contestant) {
	for _, name := range []string{nobody, atLimit, toldAll} {
		list = append(list, contestant{name, func() (float64, error) {
			if err := l.listen(name); err != nil {
				return 0, err
			}
			if _, err := once(); err != nil {
				return 0, err
			}
			took, err := once()
			if err != nil || l.now == nil {
				return took, err
			}
			if told, err := l.drain(); err != nil || told == 0 {
				return 0, errors.Join(err, errors.New("the listener was told nothing"))
			}
			return took, nil
		}})
	}
	return list
}

// measureMonitor measures what events add to connect(), and to packets that are dropped.
func measureMonitor(ctx context.Context, box *sandbox) ([]samples, error) {
	b, cgroup, err := servePackets(ctx, box, newPacketBench)
	if err != nil {
		return nil, err
	}
	l := &listeners{maps: b.maps}
	groups := map[string]string{beeline: cgroup}
	cookie, err := datapath.NetnsCookie()
	if err != nil {
		return nil, err
	}
	if err := attachCopies(box, b.maps, datapath.Constants{HostNetns: cookie, Seed: 1, LocalityIdle: time.Hour}, groups); err != nil {
		return nil, err
	}
	packets, err := packetCopies(b.maps)
	if err != nil {
		return nil, err
	}
	runs, err := measureFamilies(func(s samples, family model.Family) error {
		return errors.Join(l.silent(ctx, s, groups, family), l.silentPackets(ctx, s, b, packets, family),
			l.connects(ctx, s, groups, family), l.drops(ctx, s, b, family))
	})
	return runs, errors.Join(err, l.listen(nobody))
}

// openMonitored makes a socket in a cgroup, to connect to a ClusterIP.
func openMonitored(groups map[string]string, group string, family model.Family) (*variant, error) {
	v := &variant{group: group, targets: toService(load{services: 10000, endpoints: destinations}, datagramPacketService, family)}
	return v, v.openUDP(groups, family)
}

// silent measures what events cost connect() while nobody listens.
func (l *listeners) silent(ctx context.Context, s samples, groups map[string]string, family model.Family) error {
	if err := l.listen(nobody); err != nil { // who listened last, in measuring another family, does still
		return err
	}
	var list []contestant
	for i := range copies {
		for _, group := range []string{silent, telling} {
			v, err := openMonitored(groups, copyOf(group, i), family)
			if err != nil {
				return err
			}
			defer unix.Close(int(v.fd))
			list = append(list, contestant{v.group, v.reuse})
		}
	}
	return interleave(ctx, monitorRounds, list, func(m measured) {
		s.add(of("monitor/connect/nobody", family), ofEvents(m, ""))
	})
}

// packetCopies loads copies of the program for packets that come in by a device.
func packetCopies(m *bpfmap.Maps) (map[string]*ebpf.Program, error) {
	loaded := make(map[string]*ebpf.Program)
	for i := range copies {
		for _, group := range []string{silent, telling} {
			programs, err := loadCopy(m, datapath.Constants{Seed: 1, Sent: sent}, bpf.LoadTc, group == silent, bpf.TcProgBlIngress)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", copyOf(group, i), err)
			}
			loaded[copyOf(group, i)] = programs[bpf.TcProgBlIngress]
		}
	}
	return loaded, nil
}

// silentPackets measures what events cost the first packet of a connection to a NodePort, and one of a flow
// that is known, while nobody listens.
func (l *listeners) silentPackets(ctx context.Context, s samples, b *packetBench, programs map[string]*ebpf.Program, family model.Family) error {
	if err := l.listen(nobody); err != nil {
		return err
	}
	known, err := b.known(family)
	if err != nil {
		return err
	}
	fresh := b.fresh(family, known)
	runs := make(map[string]run)
	for name, program := range programs {
		first, later := fresh["new"], known["flow"]
		first.program, later.program = program, program
		runs["new/"+name], runs["flow/"+name] = first, later
	}
	if err := b.fill(fresh["new"]); err != nil {
		return err
	}
	return interleave(ctx, monitorRounds, b.contestants(runs), func(m measured) {
		for _, kind := range []string{"new", "flow"} {
			s.add(of("monitor/"+kind+"/nobody", family), ofEvents(m, kind+"/"))
		}
	})
}

// connects measures connect() of a socket at a ClusterIP.
func (l *listeners) connects(ctx context.Context, s samples, groups map[string]string, family model.Family) error {
	v, err := openMonitored(groups, beeline, family)
	if err != nil {
		return err
	}
	return interleave(ctx, monitorRounds, l.contestants(v.reuse), func(m measured) {
		s.add(of("monitor/connect/limit", family), m[atLimit]-m[nobody])
		s.add(of("monitor/connect/all", family), m[toldAll]-m[nobody])
	})
}

// drops measures packets to a NodePort that has no endpoint on this node.
func (l *listeners) drops(ctx context.Context, s samples, b *packetBench, family model.Family) error {
	dropped := run{
		program: b.ingress, packet: newUDP(outsider(family), netip.AddrPortFrom(b.node[family], localNodePort)), verdict: tcDrops,
	}
	once := func() (float64, error) { return b.time(dropped, monitorBatch) }
	return interleave(ctx, monitorRounds, l.contestants(once), func(m measured) {
		s.add(of("monitor/drop", family), m[nobody])
		s.add(of("monitor/drop/limit", family), m[atLimit]-m[nobody])
		s.add(of("monitor/drop/all", family), m[toldAll]-m[nobody])
	})
}

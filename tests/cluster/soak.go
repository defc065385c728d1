package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/beeline-lb/beeline/tests/cluster/loadstats"
)

// soakTask is its name.
const soakTask = "soak"

// soakSettle is how long a disturbance explains failures after its end: longer than a client
// waits for an answer.
const soakSettle = 10 * time.Second

// The pause that follows, in which nothing may fail.
const (
	soakPauseLeast = 5 * time.Second
	soakPauseMost  = 20 * time.Second
)

// soakSockets is how many UDP sockets each client keeps: one for each target, and more.
const soakSockets = 24

// soakTables has the flow table small enough for a flood to fill it.
const soakTables = "config.tables.maxFlows=32768"

// soakRun is a cluster that is disturbed in every way, one after another, and what was seen
// of it.
type soakRun struct {
	*cluster
	traffic traffic
	random  *rand.Rand
	spare   []string         // URLs of the Service that has no endpoints at times
	flooded []netip.AddrPort // what floods begin connections to

	// before are the counts of each client when it was last looked at.
	before  map[string]loadstats.Stats
	samples map[string][]sample // by node
	report  soakReport
}

// soak disturbs a cluster under traffic for a set time and writes what it saw to RESULTS.md.
// It fails when requests failed that no disturbance explains, when an agent's memory, file
// descriptors or goroutines or the maps grew, or when beeline verify found something. It
// goes on after each of these, and ends early only when the cluster does not come back.
func soak(ctx context.Context, c *cluster) error {
	s := &soakRun{
		cluster: c, traffic: traffic{cluster: c}, random: rand.New(rand.NewPCG(c.Seed, 0)),
		before: make(map[string]loadstats.Stats), samples: make(map[string][]sample),
		report: newSoakReport(c.settings),
	}
	c.say("soak for %s, seed %d", c.Duration, c.Seed)
	if err := s.start(ctx); err != nil {
		return err
	}
	begin := time.Now()
	err := s.disturb(ctx, begin.Add(c.Duration))
	if ctx.Err() != nil {
		c.say("interrupted: the report is of what there was until now")
	} else if err != nil {
		s.fault("%v", err)
	}
	s.report.took = time.Since(begin)
	s.judgeLevels()
	return s.report.write()
}

// start starts servers and clients, and takes the counts that the first disturbance is
// compared with.
func (s *soakRun) start(ctx context.Context) error {
	for _, name := range []string{"web", "spare"} {
		if err := s.startWeb(ctx, name, corev1.ServiceExternalTrafficPolicyCluster, false); err != nil {
			return err
		}
	}
	if err := s.applyWith(ctx, "datagrams.yaml", map[string]any{"App": "web"}); err != nil {
		return err
	}
	webInside, webOutside, err := s.serviceAddresses(ctx, "web")
	if err != nil {
		return err
	}
	udpInside, udpOutside, err := s.serviceAddresses(ctx, "datagrams")
	if err != nil {
		return err
	}
	if err := s.startTraffic(ctx, &s.traffic, trafficOptions{
		shortInside: append(webInside, byUDP(udpInside)...), shortOutside: append(webOutside, byUDP(udpOutside)...),
		sockets: soakSockets,
	}); err != nil {
		return err
	}
	_, flooded, err := s.serviceAddresses(ctx, "echo")
	if err != nil {
		return err
	}
	for _, url := range flooded {
		s.flooded = append(s.flooded, targetAddr(url))
	}
	if _, s.spare, err = s.serviceAddresses(ctx, "spare"); err != nil {
		return err
	}
	if err := s.answers(ctx, s.spare[0]); err != nil {
		return err
	}
	if err := s.traffic.startOutside(spareSource, "--rate=10", "--targets="+strings.Join(s.spare, ",")); err != nil {
		return err
	}
	if err := settle(ctx, soakSettle); err != nil {
		return err
	}
	for _, from := range s.traffic.sources {
		if s.before[from.name], err = s.counts(ctx, from); err != nil {
			return err
		}
	}
	return s.sampleAgents(ctx)
}

// byUDP returns the targets for datagrams.
func byUDP(urls []string) []string {
	var all []string
	for _, url := range urls {
		all = append(all, strings.Replace(url, "http://", "udp://", 1))
	}
	return all
}

// disturb disturbs the cluster until the deadline: each disturbance once a round, in random
// order. Agents are replaced for another size of the tables in the first half only, so that
// the first node's agent lives through the second.
func (s *soakRun) disturb(ctx context.Context, deadline time.Time) error {
	half := time.Now().Add(time.Until(deadline) / 2)
	resized := false
	for {
		for _, i := range s.random.Perm(len(disturbances)) {
			d := disturbances[i]
			if time.Now().After(deadline) {
				return nil
			}
			if d.name == resizeName {
				if resized && time.Now().After(half) {
					continue
				}
				resized = true
			}
			if err := s.once(ctx, d); err != nil {
				return fmt.Errorf("%s: %w", d.name, err)
			}
		}
	}
}

// once makes one disturbance and then checks everything. The error says that the cluster did
// not come back.
func (s *soakRun) once(ctx context.Context, d disturbance) error {
	begin, do, what := time.Now(), d.do, d.name
	if d.name != floodName && s.random.IntN(4) == 0 {
		what += ", " + floodName
		do = func(s *soakRun, ctx context.Context) (explanation, error) { return s.underFlood(ctx, d) }
	}
	explains, err := do(s, ctx)
	if err != nil {
		return err
	}
	took := time.Since(begin)
	if err := settle(ctx, soakSettle); err != nil {
		return err
	}
	seen, err := s.countTraffic(ctx, what, explains)
	if err != nil {
		return err
	}
	pause := soakPauseLeast + time.Duration(s.random.Int64N(int64(soakPauseMost-soakPauseLeast)))
	if err := settle(ctx, pause); err != nil {
		return err
	}
	after, err := s.countTraffic(ctx, "after "+what, nil)
	if err != nil {
		return err
	}
	seen.add(after)
	if err := s.verifyAll(ctx, what); err != nil {
		return err
	}
	if err := s.sampleAgents(ctx); err != nil {
		return err
	}
	s.report.add(d.name, took, seen)
	s.say("%-26s %4.0fs  %6d requests, %d by UDP, %d sent again, %d failed, %d of them explained; %s",
		what, took.Seconds(), seen.requests+seen.datagrams, seen.datagrams, seen.resent, seen.failed, seen.explained, s.lastSamples())
	return nil
}

// explanation reports whether a disturbance explains a failure that a client saw on a path;
// nil explains none.
type explanation func(client string, path loadstats.Path) bool

// seen is what the clients saw in some time.
type seen struct {
	requests, datagrams, resent, failed, explained int
}

func (s *seen) add(o seen) {
	s.requests += o.requests
	s.datagrams += o.datagrams
	s.resent += o.resent
	s.failed += o.failed
	s.explained += o.explained
}

// counts returns what a client counted. It asks until there is an answer.
func (s *soakRun) counts(ctx context.Context, from source) (stats loadstats.Stats, err error) {
	err = s.await(ctx, "counts of the client "+from.name, func() (err error) {
		stats, err = from.read()
		return err
	})
	return stats, err
}

// countTraffic counts what the clients saw since it was last called. Failures that are not
// explained are faults.
func (s *soakRun) countTraffic(ctx context.Context, name string, explains explanation) (seen, error) {
	var all seen
	for _, from := range s.traffic.sources {
		now, err := s.counts(ctx, from)
		if err != nil {
			return all, err
		}
		one, unexplained := compare(from.name, s.before[from.name], now, explains)
		s.before[from.name] = now
		if one.failed > one.explained {
			s.fault("%s: client %s: %d requests failed:\n  %s", name, from.name,
				one.failed-one.explained, strings.Join(unexplained, "\n  "))
		}
		if one.requests <= 0 {
			s.fault("%s: client %s got no answer, or began anew", name, from.name)
		}
		all.add(one)
	}
	return all, nil
}

// compare returns what a client saw between two readings of its counts, and where requests
// failed without explanation.
func compare(client string, before, now loadstats.Stats, explains explanation) (one seen, unexplained []string) {
	one.requests = now.Requests + now.Short - before.Requests - before.Short
	one.datagrams = now.Datagrams - before.Datagrams
	one.resent = now.Resent - before.Resent
	for path, failure := range now.Failures {
		n := failure.Times - before.Failures[path].Times
		one.failed += n
		switch {
		case n <= 0:
		case explains != nil && explains(client, path):
			one.explained += n
		default:
			unexplained = append(unexplained, fmt.Sprintf("%d times, server %q, the latest: %s", n, path.Server, failure.Latest))
		}
	}
	return one, unexplained
}

// fault keeps and tells what must not be. The run goes on.
func (s *soakRun) fault(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	s.say("FAULT: %s", text)
	s.report.faults = append(s.report.faults, text)
}

// verifyAll runs beeline verify on all nodes. What it finds is a fault when it is still there
// after a minute.
func (s *soakRun) verifyAll(ctx context.Context, name string) error {
	for _, n := range s.nodes {
		deadline := time.Now().Add(time.Minute)
		for {
			out, err := s.beeline(ctx, n, "verify")
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if err == nil {
				break
			}
			if time.Now().After(deadline) {
				s.fault("%s: beeline verify on %s: %v\n%s", name, nodeName(n.index), err, out)
				break
			}
			if err := settle(ctx, time.Second); err != nil {
				return err
			}
		}
	}
	return nil
}

// errSoakFaults says that the faults have been told.
var errSoakFaults = errors.New("the soak has found faults, see above")

package differential

import (
	"flag"
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/beeline-lb/beeline/tests/lab"
	"github.com/beeline-lb/beeline/tests/tier"
)

var (
	seed     = flag.Uint64("seed", 1, "of the random clusters")
	first    = flag.Uint64("first", 0, "the number of the first random cluster")
	clusters = flag.Uint64("clusters", 60, "how many random clusters are compared, of all settings together")
)

// probesOfCluster is how many probes of its matrix are made in each cluster.
const probesOfCluster = 48

// fresh is how many clusters come from one by changes, with itself.
const fresh = 4

// maxDifferences ends a run: each takes long to minimise.
const maxDifferences = 8

const nodePortsEverywhere = "nodePortAddresses: [0.0.0.0/0, \"::/0\"]\n"

var allSettings = []settings{
	{name: "sockets", config: nodePortsEverywhere},
	{name: "packets", config: nodePortsEverywhere, packets: true, flags: []string{"--socket-lb", "host-namespace-only", "--pod-devices", "vethpod*"}},
	{name: "masquerade-all", config: nodePortsEverywhere + "nftables: {masqueradeAll: true, minSyncPeriod: 10ms}\n", masquerade: true},
	{name: "primary", config: "nodePortAddresses: [primary]\n", primary: true},
	{name: "xdp", config: "nodePortAddresses: [0.0.0.0/0]\n", flags: []string{"--xdp", "generic"}},
}

// newPair starts both proxies.
func newPair(t *testing.T, s settings) *pair {
	t.Helper()
	lab.Need(t, "nft")
	p := &pair{t: t, settings: s}
	tier.Slow(t, "needs a kube-proxy, which takes minutes to build")
	p.beeline, p.kubeProxy = newWorld(t, "Beeline"), newWorld(t, "kube-proxy")
	config := s.config
	if !s.masquerade {
		config += "nftables: {minSyncPeriod: 10ms}\n"
	}
	p.beeline.everywhere, p.kubeProxy.everywhere = !s.primary, !s.primary
	p.beeline.startBeeline(config, s.flags...)
	p.kubeProxy.startKubeProxy(config)
	p.must(p.apply(&cluster{zone: zones[0]}))
	return p
}

func (p *pair) must(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatal(err)
	}
}

// TestRandomClusters: clusters that change at random are served as by kube-proxy, but for
// documented differences.
func TestRandomClusters(t *testing.T) {
	for i, s := range allSettings {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			p := newPair(t, s)
			p.run(*seed+uint64(i)<<32, *first, *first+*clusters/uint64(len(allSettings)))
		})
	}
}

// run compares the clusters of a stream by their numbers and reports the differences.
func (p *pair) run(stream, from, to uint64) {
	p.t.Helper()
	var before *cluster
	found, probes := 0, 0
	number := from - from%fresh
	for ; number < to && found < maxDifferences; number++ {
		base := before
		if number%fresh == 0 {
			base = nil
		}
		c := generate(stream, number, base)
		if number >= from {
			p.must(p.apply(c))
			chosen := sample(c, probesOfCluster, stream, number)
			probes += len(chosen)
			differences, err := p.compare(c, chosen)
			p.must(err)
			if len(differences) > 0 {
				found++
				p.report(number, before, c, differences)
			}
		}
		before = c
		if done := number + 1 - from; number >= from && done%100 == 0 {
			p.t.Logf("%s: %d clusters so far, %d probes", p.settings.name, done, probes)
		}
	}
	p.t.Logf("%s: %d clusters of seed %d, %d probes, %d with differences", p.settings.name, number-from, *seed, probes, found)
}

// report fails the test with the smallest cluster that shows the first difference.
func (p *pair) report(number uint64, before, c *cluster, found []difference) {
	p.t.Helper()
	text := fmt.Sprintf("cluster %d of seed %d, settings %s: %d differences\n", number, *seed, p.settings.name, len(found))
	for _, d := range found {
		text += d.String() + "\n"
	}
	small, first := p.smallest(c, found[0])
	after := ""
	if small == nil && before != nil {
		small, first = p.smallestAfter(before, c, found[0])
		after = fmt.Sprintf("It shows after this cluster alone:\n%s\n", before)
	}
	if small == nil {
		p.t.Errorf("%sIt does not show again.\n%s", text, c)
		return
	}
	p.t.Errorf("%s%sThe smallest cluster that shows\n%s\n%s", text, after, first, small)
}

// smallest minimises a cluster that shows a difference by itself. It returns nil when it
// does not.
func (p *pair) smallest(c *cluster, d difference) (*cluster, difference) {
	return p.smallestAfter(&cluster{zone: zones[0]}, c, d)
}

// smallestAfter is smallest of a cluster that shows the difference after another one.
func (p *pair) smallestAfter(before, c *cluster, d difference) (*cluster, difference) {
	fails := func(c *cluster) bool {
		p.must(p.apply(before))
		p.must(p.apply(c))
		found, err := p.compare(c, []probe{d.probe})
		p.must(err)
		if len(found) == 0 {
			return false
		}
		d = found[0]
		return true
	}
	if !fails(c) {
		return nil, d
	}
	small := minimise(c, fails)
	fails(small)
	return small, d
}

// TestPlantedFaults: a fault that Beeline is made to have is found, and one of them, for it takes
// minutes, shown in a cluster of one Service.
func TestPlantedFaults(t *testing.T) {
	t.Parallel()
	for name, alter := range map[string]func(*cluster){
		"the external policy": func(c *cluster) {
			for _, s := range c.services {
				s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyCluster
			}
		},
		"source ranges": func(c *cluster) {
			for _, s := range c.services {
				s.Spec.LoadBalancerSourceRanges = nil
			}
		},
		"hints": func(c *cluster) {
			for _, e := range c.slices {
				for i := range e.Endpoints {
					e.Endpoints[i].Hints = nil
				}
			}
		},
		"terminating endpoints": func(c *cluster) {
			for _, e := range c.slices {
				e.Endpoints = slices.DeleteFunc(e.Endpoints, func(e discoveryv1.Endpoint) bool { return or(e.Conditions.Terminating, false) })
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPair(t, allSettings[0])
			p.beeline.alter = alter
			p.findFault(name == "source ranges")
		})
	}
}

// findFault looks for a difference in random clusters, and for the smallest that shows it if that is
// asked for.
func (p *pair) findFault(small bool) {
	p.t.Helper()
	const most = 100
	for number := range uint64(most) {
		c := generate(1, number*fresh, nil)
		p.must(p.apply(c))
		found, err := p.compare(c, sample(c, probesOfCluster, 1, number))
		p.must(err)
		if len(found) == 0 {
			continue
		}
		if small {
			p.checkSmallest(c, found[0])
		}
		return
	}
	p.t.Errorf("not found in %d clusters", most)
}

// checkSmallest wants a difference to show in a cluster of one Service.
func (p *pair) checkSmallest(c *cluster, found difference) {
	p.t.Helper()
	small, d := p.smallest(c, found)
	if small == nil {
		p.t.Errorf("%s\ndoes not show again", found)
		return
	}
	if len(small.services) != 1 {
		p.t.Errorf("%d Services in the smallest cluster:\n%s", len(small.services), small)
	}
	p.t.Logf("%s\n%s", d, small)
}

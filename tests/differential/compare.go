package differential

import (
	"fmt"
	"math"
	"net/netip"
	"slices"
	"time"
)

// pair is a world that Beeline serves and one that kube-proxy does.
type pair struct {
	t                  tester
	beeline, kubeProxy *world
	settings           settings
}

// settings are how both proxies are configured.
type settings struct {
	name   string
	config string   // lines of KubeProxyConfiguration, for both
	flags  []string // of beeline-agent, which have no counterpart
	// masquerade is set when all clients are to be hidden.
	masquerade bool
	// primary is set when NodePorts answer at the node's own addresses alone.
	primary bool
	// packets is set when pods' packets are translated in place of their sockets.
	packets bool
}

// difference is what a probe came to in both worlds.
type difference struct {
	probe
	beeline, kubeProxy outcome
	what               string
}

func (d difference) String() string {
	return fmt.Sprintf("%s: %s\n  Beeline:    %s\n  kube-proxy: %s", d.probe, d.what, d.beeline, d.kubeProxy)
}

// missed is how probable it may be that attempts of a probe do not show an endpoint that the
// other proxy's show, if each endpoint is as likely as another. A difference is confirmed by so
// many more attempts that chance is out of the question, so this is about what is overlooked.
const missed, confirmed = 0.01, 1e-7

// attemptsFor returns how many attempts show each of n endpoints but for the probability.
func attemptsFor(n int, probability float64) int {
	if n < 2 {
		return 2
	}
	return int(math.Ceil(math.Log(probability/float64(n)) / math.Log(1-1/float64(n))))
}

// apply makes the cluster that of both worlds.
func (p *pair) apply(c *cluster) error {
	errs := make(chan error, 2)
	for _, w := range []*world{p.beeline, p.kubeProxy} {
		go func() { errs <- w.apply(c) }()
	}
	err := <-errs
	if other := <-errs; err == nil {
		err = other
	}
	return err
}

// compare makes the probes in both worlds and returns the differences that nothing excuses.
func (p *pair) compare(c *cluster, probes []probe) ([]difference, error) {
	suspects, err := p.look(c, probes, missed, 0)
	if err != nil || len(suspects) == 0 {
		return nil, err
	}
	again := make([]probe, len(suspects))
	for i, d := range suspects {
		again[i] = d.probe
	}
	const pause = 300 * time.Millisecond
	return p.look(c, again, confirmed, pause)
}

// look makes the probes in both worlds, each so often that an endpoint is missed with the
// probability at most.
func (p *pair) look(c *cluster, probes []probe, probability float64, pause time.Duration) (found []difference, err error) {
	both := [2][]outcome{}
	errs := make(chan error, 2)
	for i, w := range []*world{p.beeline, p.kubeProxy} {
		go func() {
			var err error
			both[i], err = w.look(c, probes, probability, pause)
			errs <- err
		}()
	}
	for range both {
		if e := <-errs; e != nil {
			err = e
		}
	}
	if err != nil {
		return nil, err
	}
	for i, probe := range probes {
		d := difference{probe: probe, beeline: both[0][i], kubeProxy: both[1][i]}
		if d.what = p.differ(c, d); d.what != "" {
			found = append(found, d)
		}
	}
	return found, nil
}

// look makes probes in one world. Those from one machine are made together.
func (w *world) look(c *cluster, probes []probe, probability float64, pause time.Duration) ([]outcome, error) {
	outcomes := make([]outcome, len(probes))
	type share struct {
		attempts []attempt
		of       []int // the probe of each attempt
	}
	shares := make(map[string]*share)
	for i, p := range probes {
		s := shares[p.machine]
		if s == nil {
			s = new(share)
			shares[p.machine] = s
		}
		for _, a := range attemptsOf(c, p, probability) {
			s.attempts, s.of = append(s.attempts, a), append(s.of, i)
		}
	}
	for name, s := range shares {
		results, err := w.at[name].try(s.attempts, pause)
		if err != nil {
			return nil, fmt.Errorf("%s, from %s: %w", w.name, name, err)
		}
		for first := 0; first < len(s.of); {
			last := first
			for last < len(s.of) && s.of[last] == s.of[first] {
				last++
			}
			p := probes[s.of[first]]
			outcomes[s.of[first]] = judge(s.attempts[first:last], results[first:last], func(a attempt, source netip.Addr) bool {
				return isOwn(p, a, source)
			})
			first = last
		}
	}
	return outcomes, nil
}

// attemptsOf returns the attempts of a probe. Where clients keep their endpoint, each client
// makes two. Where the Service lets in some of the clients alone, these make as many among themselves.
func attemptsOf(c *cluster, p probe, probability float64) (out []attempt) {
	all, _, _ := candidates(c, p)
	n := min(attemptsFor(len(all), probability), 2*clientsOfGroup)
	for _, clients := range [][]netip.Addr{clientsOf(p), letIn(c, p)} {
		for i := range n {
			if len(clients) > 0 {
				out = append(out, attempt{from: clients[i/2%len(clients)], udp: p.udp, to: p.to})
			}
		}
	}
	return out
}

// clientsOf returns where the attempts of a probe come from, a zero address where the machine's own
// is used.
func clientsOf(p probe) []netip.Addr {
	switch p.machine {
	case fromOutside:
		list := make([]netip.Addr, clientsOfGroup)
		for i := range list {
			list[i] = outsideAddrs(p.group, i)[p.family()]
		}
		return list
	case fromOther:
		return []netip.Addr{otherPods[0][p.family()]}
	}
	return []netip.Addr{{}}
}

// letIn returns those of several clients that a Service's source ranges let in, unless that is all.
func letIn(c *cluster, p probe) []netip.Addr {
	s, clients := c.service(p.service), clientsOf(p)
	if len(clients) < 2 || !isBalancer(s, p.to.Addr()) {
		return nil
	}
	list := slices.DeleteFunc(slices.Clone(clients), func(a netip.Addr) bool { return !inRanges(s, []netip.Addr{a}) })
	if len(list) == len(clients) {
		return nil
	}
	return list
}

// isOwn says whether a source is the client's own address.
func isOwn(p probe, a attempt, source netip.Addr) bool {
	switch p.machine {
	case fromPod0:
		return source == podAddrs[0][p.family()]
	case fromPod1:
		return source == podAddrs[1][p.family()]
	case fromNode:
		return false // it has several, and which one matters
	}
	return source == a.from
}

// differ says how the outcomes differ, "" when they do not, or the table excuses it.
func (p *pair) differ(c *cluster, d difference) string {
	for _, e := range excuses {
		if e.applies(c, d) {
			return ""
		}
	}
	switch {
	case !slices.Equal(d.beeline.verdicts, d.kubeProxy.verdicts):
		return "another verdict"
	case affinity(c, d.probe):
		return p.differByAffinity(c, d)
	case !slices.Equal(d.beeline.servers(), d.kubeProxy.servers()):
		return "other endpoints"
	}
	for s, beeline := range d.beeline.sources {
		for source := range beeline {
			if !d.kubeProxy.sources[s][source] && !p.mayShow(d, s, source) {
				return fmt.Sprintf("%s sees another source, %s", s, source)
			}
		}
	}
	return ""
}

// differByAffinity compares what cannot be the same endpoints, for each proxy chooses one:
// clients stay at it, and it is one of those that policies leave.
func (p *pair) differByAffinity(c *cluster, d difference) string {
	_, inside, outside := candidates(c, d.probe)
	allowed := inside
	if d.machine == fromOutside || d.machine == fromOther {
		allowed = outside
	}
	for name, o := range map[string]outcome{"Beeline": d.beeline, "kube-proxy": d.kubeProxy} {
		if o.strayed {
			return "a client of " + name + " changes its endpoint"
		}
		for _, s := range o.servers() {
			if !slices.Contains(allowed, s) {
				return fmt.Sprintf("%s leads to %s, which is not one of %v", name, s, allowed)
			}
		}
	}
	if (len(d.beeline.sources) == 0) != (len(d.kubeProxy.sources) == 0) {
		return "another verdict"
	}
	for s, beeline := range d.beeline.sources {
		kubeProxy, both := d.kubeProxy.sources[s]
		for source := range beeline {
			if both && !kubeProxy[source] && !p.mayShow(d, s, source) {
				return fmt.Sprintf("%s sees another source, %s", s, source)
			}
		}
	}
	return ""
}

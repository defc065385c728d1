package apiserver

import (
	"context"
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/beeline-lb/beeline/tests/wait"
)

// Sizes of [TestAgents]; docs/design/scale.md says how to measure with others.
var (
	agentCount     = flag.Int("agents", 20, "clients of each kind")
	agentServices  = flag.Int("agent-services", 100, "Services")
	agentEndpoints = flag.Int("agent-endpoints", 10, "endpoints of each Service")
	agentSteady    = flag.Duration("agent-steady", 3*time.Second, "length of the steady state")
)

// phase is one part of a measurement.
type phase struct {
	name string
	traffic
	took                  time.Duration
	cpu                   time.Duration // of the API server and etcd
	apiRSS, apiPeak, etcd int           // KiB, at the end
	peak                  int           // requests in the busiest second
}

// TestAgents: many agents ask an API server for no more than as many kube-proxies do.
func TestAgents(t *testing.T) {
	s := Start(t)
	t.Run("Fleets", func(t *testing.T) { testFleets(t, newCluster(t, s)) })
}

func testFleets(t *testing.T, c *cluster) {
	slices := c.fill(t)
	none := &fleet{name: "none"}
	c.during(t, none, "steady", func() { time.Sleep(*agentSteady) }).print(t, none.name)
	proxies := c.measure(t, kubeProxyFleet(), slices)
	c.rollout(t, slices, "10.1.")
	agents := c.measure(t, beelineFleet(), slices)
	for i, a := range agents {
		k := proxies[i]
		a.print(t, "beeline")
		k.print(t, "kube-proxy")
		n := int64(*agentCount)
		// Of a thousand clients some repeat a request.
		if most := k.requests * 101 / 100; a.name != "restart" && a.requests > most {
			t.Errorf("%s: %d requests, want at most %d (kube-proxy: %d)", a.name, a.requests, most, k.requests)
		}
		lists, bytes := k.lists, k.in+k.out
		if a.name == "restart" {
			// Whether a watch goes on or begins with a list depends on when the last bookmark came: at
			// most each begins with one, as at the start.
			lists, bytes = max(lists, proxies[0].lists), max(bytes, proxies[0].in+proxies[0].out)
		}
		if got, most := a.in+a.out, bytes*105/100+5000*n; got > most {
			t.Errorf("%s: %d bytes, want at most %d (kube-proxy: %d)", a.name, got, most, bytes)
		}
		if a.name == "restart" && a.lists > lists {
			t.Errorf("after the restart %d lists, want at most kube-proxy's %d", a.lists, lists)
		}
	}
}

// fill makes the Services and their slices.
func (c *cluster) fill(t *testing.T) []*discoveryv1.EndpointSlice {
	t.Helper()
	var all []*discoveryv1.EndpointSlice
	for i := range *agentServices {
		name := fmt.Sprintf("svc-%d", i)
		c.createService(t, c.service(name))
		sl := c.slice(name+"-a", name)
		for j := range *agentEndpoints {
			n := i**agentEndpoints + j
			sl.Endpoints = append(sl.Endpoints, ready(fmt.Sprintf("10.1.%d.%d", n/250%250, n%250+1)))
		}
		all = append(all, c.createSlice(t, sl))
	}
	return all
}

// rollout gives 100 slices other addresses, which begin with prefix, in one step each.
func (c *cluster) rollout(t *testing.T, slices []*discoveryv1.EndpointSlice, prefix string) int {
	t.Helper()
	n := min(100, len(slices))
	for i, sl := range slices[:n] {
		for j := range sl.Endpoints {
			rest := strings.SplitN(sl.Endpoints[j].Addresses[0], ".", 3)[2]
			sl.Endpoints[j].Addresses[0] = prefix + rest
		}
		slices[i] = c.updateSlice(t, sl)
	}
	return n
}

// measure runs a fleet through all phases.
func (c *cluster) measure(t *testing.T, f *fleet, slices []*discoveryv1.EndpointSlice) []phase {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	want := f.watches * int64(*agentCount)
	connected := func() bool { return f.open.Load() == want }
	list := []phase{
		c.during(t, f, "start", func() {
			for i := range *agentCount {
				f.run(ctx, t, f, f.config(c.server.Config), fmt.Sprintf("node-%d", i))
			}
			wait.Until(t, f.name+": all watches", connected)
			f.settle()
		}),
		c.during(t, f, "steady", func() { time.Sleep(*agentSteady) }),
		c.during(t, f, "rollout", func() {
			seen := f.changed.Load() + int64(c.rollout(t, slices, newAddr)**agentCount)
			wait.Until(t, f.name+": all changes", func() bool { return f.changed.Load() >= seen })
		}),
	}
	return append(list, c.during(t, f, "restart", func() {
		c.server.Kill()
		wait.Until(t, f.name+": watches ended", func() bool { return f.open.Load() == 0 })
		c.server.Restart(t)
		wait.Until(t, f.name+": all watches again", connected)
		f.settle()
	}))
}

// settle returns when nothing has come in for a second: lists are streamed by watches that
// are open.
func (f *fleet) settle() {
	const quiet = time.Second
	for before := int64(-1); before != f.in.Load(); time.Sleep(quiet) {
		before = f.in.Load()
	}
}

// during measures what f and the server do while do runs.
func (c *cluster) during(t *testing.T, f *fleet, name string, do func()) phase {
	t.Helper()
	api, etcd := c.server.api.cmd.Process.Pid, c.server.etcd.cmd.Process.Pid
	before, begin, cpu := f.traffic(), time.Now(), cpuTime(t, api)+cpuTime(t, etcd)
	do()
	p := phase{name: name, took: time.Since(begin), peak: f.peak(begin)}
	p.traffic = f.traffic().minus(before)
	if now := c.server.api.cmd.Process.Pid; now != api {
		api, cpu = now, cpuTime(t, etcd) // the new server's from its start
	}
	p.cpu = cpuTime(t, api) + cpuTime(t, etcd) - cpu
	p.apiRSS, p.apiPeak, p.etcd = memory(t, api, "VmRSS"), memory(t, api, "VmHWM"), memory(t, etcd, "VmRSS")
	return p
}

func (p phase) print(t *testing.T, who string) {
	t.Logf("%-8s %-10s %5.1f s: %6d requests (%d lists, %d put off, %d in the busiest second), %d bytes in, %d out; server CPU %.2f s, API server %d MiB (peak %d), etcd %d MiB",
		p.name, who, p.took.Seconds(), p.requests, p.lists, p.later, p.peak, p.in, p.out, p.cpu.Seconds(), p.apiRSS>>10, p.apiPeak>>10, p.etcd>>10)
}

// cpuTime returns the CPU time of a process, user and system.
func cpuTime(t *testing.T, pid int) time.Duration {
	t.Helper()
	const tick = 10 * time.Millisecond // USER_HZ is 100
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	must(t, err)
	fields := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
	user, err := strconv.Atoi(fields[11])
	must(t, err)
	system, err := strconv.Atoi(fields[12])
	must(t, err)
	return time.Duration(user+system) * tick
}

// memory returns a field of a process's status, in KiB.
func memory(t *testing.T, pid int, field string) int {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	must(t, err)
	_, rest, _ := strings.Cut(string(b), field+":")
	n, err := strconv.Atoi(strings.Fields(rest)[0])
	must(t, err)
	return n
}

package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/tests/apiserver"
)

const (
	agentRuns = 3
	// changes is how many endpoints are replaced for each run of the agent, after
	// warmUp of them that do not count.
	changes = 110
	warmUp  = 5
	// growthRounds is how often the CPU time of a change is compared.
	growthRounds = 5
	// settle is how long the agent has to give memory back before it is weighed.
	settle = 2 * time.Second
)

// shapes are the clusters that the control plane is measured with.
var shapes = []load{
	{services: 10000, endpoints: 10, protocol: model.UDP},
	{services: 1000, endpoints: 100, protocol: model.UDP},
	{services: 100, endpoints: 1000, protocol: model.UDP},
	{services: 1000, endpoints: 100, protocol: model.UDP, ring: 16381},
	{services: 100, endpoints: 10, protocol: model.UDP},
}

func (l load) String() string {
	if l.ring != 0 {
		return fmt.Sprintf("%dx%d/maglev", l.services, l.endpoints)
	}
	return fmt.Sprintf("%dx%d", l.services, l.endpoints)
}

const agentName = "beeline-agent"

// buildCluster builds what a sandbox, which has no network, cannot.
func buildCluster(ctx context.Context, dir string) error {
	build := exec.CommandContext(ctx, "go", "build", "-buildvcs=false", "-o", dir, "./cmd/"+agentName)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build the agent (run inside the repository): %w: %s", err, out)
	}
	_, err := apiserver.Build(ctx)
	return err
}

// measureControl measures the agent against a real API server that holds the load.
func (l load) measureControl(ctx context.Context, box *sandbox) (runs []samples, err error) {
	c, stop, err := l.startCluster(ctx, box.dir)
	if err != nil {
		return nil, err
	}
	defer stop()
	cgroup, err := enterControl(box)
	if err != nil {
		return nil, err
	}
	for range agentRuns {
		s := make(samples)
		if err := c.measureAgent(ctx, s, box, cgroup); err != nil {
			return nil, err
		}
		runs = append(runs, s)
	}
	return runs, nil
}

// measureGrowth compares the CPU time of a change with the most Services and with the
// fewest. They take turns, for it also depends on what else the machine does.
func measureGrowth(ctx context.Context, box *sandbox) (runs []samples, err error) {
	var cgroup string
	var contestants []contestant
	large, small := shapes[0], shapes[len(shapes)-1]
	for _, l := range []load{large, small} {
		c, stop, err := l.startCluster(ctx, box.dir)
		if err != nil {
			return nil, err
		}
		defer stop()
		contestants = append(contestants, contestant{l.String(), func() (float64, error) {
			s := make(samples)
			if err := c.measureAgent(ctx, s, box, cgroup); err != nil {
				return 0, err
			}
			return s[l.key("change/cpu")][0], nil
		}})
	}
	if cgroup, err = enterControl(box); err != nil {
		return nil, err
	}
	err = interleave(ctx, growthRounds, contestants, func(m measured) {
		runs = append(runs, samples{growth: {m[large.String()] / m[small.String()]}})
	})
	return runs, err
}

// enterControl makes every endpoint an address of this machine, and returns the cgroup
// for agents to serve, which this process has joined.
func enterControl(box *sandbox) (cgroup string, err error) {
	if err := addLocalEndpoints(); err != nil {
		return "", err
	}
	if cgroup, err = box.subgroup(beeline); err != nil {
		return "", err
	}
	return cgroup, join(cgroup)
}

// measureAgent measures one run of the agent.
func (c *cluster) measureAgent(ctx context.Context, s samples, box *sandbox, cgroup string) (err error) {
	p, kubeconfig, err := proxyTo(c.server, box.dir)
	if err != nil {
		return err
	}
	defer p.close()
	a, err := startAgent(box, filepath.Join(os.Getenv(buildEnv), agentName), kubeconfig, cgroup)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, a.stop()) }()
	synced, err := a.synced(ctx, c.services)
	if err != nil {
		return err
	}
	listed, err := p.lastList(synced)
	if err != nil {
		return err
	}
	s.add(c.key("list"), synced.Sub(listed).Seconds())
	s.add(c.key("start"), synced.Sub(a.started).Seconds())
	time.Sleep(settle)
	for key, field := range map[string]string{"rss": "VmRSS", "rss/peak": "VmHWM"} {
		mib, err := a.memory(field)
		if err != nil {
			return err
		}
		s.add(c.key(key), mib)
	}
	return c.measureChanges(ctx, s, p, a)
}

func (l load) key(name string) string { return fmt.Sprintf("control/%s/%s", l, name) }

// proxyTo returns a proxy in front of the API server and a kubeconfig that leads
// to it.
func proxyTo(server *apiserver.Server, dir string) (*proxy, string, error) {
	config, err := clientcmd.LoadFromFile(server.Kubeconfig)
	if err != nil {
		return nil, "", err
	}
	host, err := url.Parse(server.Config.Host)
	if err != nil {
		return nil, "", err
	}
	p, err := newProxy(host.Host)
	if err != nil {
		return nil, "", err
	}
	for _, cluster := range config.Clusters {
		cluster.Server = "https://" + p.addr()
	}
	path := filepath.Join(dir, "kubeconfig")
	return p, path, clientcmd.WriteToFile(*config, path)
}

// measureChanges replaces single endpoints, each the one that a client with
// session affinity is sent to, and measures when connect() leaves it. Affinity
// makes one connect() tell, however many endpoints there are.
func (c *cluster) measureChanges(ctx context.Context, s samples, p *proxy, a *agent) error {
	// Garbage of this process is collected between changes: its collector takes as long
	// as a change, on all CPUs.
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	watcher, err := newWatcher()
	if err != nil {
		return err
	}
	defer watcher.close()
	var before time.Duration
	for n := range warmUp + changes {
		if n == warmUp {
			if before, err = a.cpuTime(); err != nil {
				return err
			}
		}
		runtime.GC()
		time.Sleep(rand.N(10 * time.Millisecond))
		ch, err := c.change(ctx, watcher)
		if err != nil {
			return err
		}
		if n < warmUp {
			continue
		}
		arrived, err := p.firstAfter(ch.sent)
		if err != nil {
			return err
		}
		s.add(c.key("change"), milliseconds(ch.visible.Sub(arrived)))
		s.add(c.key("change/answer"), milliseconds(ch.visible.Sub(ch.answered)))
		s.add(c.key("change/resolution"), milliseconds(ch.resolution))
	}
	after, err := a.cpuTime()
	if err != nil {
		return err
	}
	s.add(c.key("change/cpu"), float64((after-before).Microseconds())/changes)
	return nil
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// change is when what happened to one replacement of an endpoint.
type change struct {
	sent     time.Time // the request, to the API server
	answered time.Time
	visible  time.Time // to connect()
	// resolution is how long before that connect() was not looked at.
	resolution time.Duration
}

func (c *cluster) change(ctx context.Context, w *watcher) (change, error) {
	service := rand.IntN((c.services+9)/10) * 10 // one with affinity
	vip := newSockaddr(c.clusterIP(service, model.IPv4), servicePort)
	old, err := w.reached(&vip)
	if err != nil {
		return change{}, err
	}
	r, err := c.prepareReplacement(ctx, service, old)
	if err != nil {
		return change{}, err
	}
	left := w.await(ctx, vip, old)
	ch := change{sent: time.Now()}
	if err := c.send(ctx, r); err != nil {
		return change{}, err
	}
	ch.answered = time.Now()
	seen := <-left
	ch.visible, ch.resolution = seen.at, seen.since
	return ch, seen.err
}

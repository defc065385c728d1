package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/beeline-lb/beeline/tests/cluster/loadstats"
)

// disturbance is something that a cluster has to bear. What it does ends with the cluster as
// it was before, and tells which failures of clients it explains.
type disturbance struct {
	name string
	do   func(*soakRun, context.Context) (explanation, error)
}

// resizeName is the disturbance that replaces all agents, floodName the one that may come
// with others.
const (
	resizeName = "tables resized"
	floodName  = "SYN flood"
)

var disturbances = []disturbance{
	{"rolling update", (*soakRun).rollingUpdate},
	{"scaled to zero", (*soakRun).scaleToZero},
	{"node rebooted", (*soakRun).rebootNode},
	{"agent killed", (*soakRun).killAgent},
	{resizeName, (*soakRun).resizeTables},
	{"API server down", (*soakRun).stopAPIServer},
	{floodName, (*soakRun).synFlood},
	{"memory pressure", (*soakRun).pressMemory},
}

// victim returns a node at random, but for the first, whose agent and system live as long as
// the tables have their size.
func (s *soakRun) victim() *node { return s.nodes[1+s.random.IntN(s.Nodes-1)] }

func (s *soakRun) rollingUpdate(ctx context.Context) (explanation, error) {
	return nil, s.replacePods(ctx, "web")
}

// spareSource is the client of the Service that has no endpoints at times.
const spareSource = "spare"

// scaleToZero takes all endpoints of a Service, whose client is refused then, and gives them
// back.
func (s *soakRun) scaleToZero(ctx context.Context) (explanation, error) {
	if err := s.scaleSpare(ctx, 0); err != nil {
		return nil, err
	}
	from := s.source(spareSource)
	first, err := s.counts(ctx, from)
	if err != nil {
		return nil, err
	}
	if err := settle(ctx, soakSettle); err != nil {
		return nil, err
	}
	last, err := s.counts(ctx, from)
	if err != nil {
		return nil, err
	}
	if last.Short > first.Short || last.Failed == first.Failed {
		s.fault("without endpoints, %d requests were answered and %d failed", last.Short-first.Short, last.Failed-first.Failed)
	}
	if err := s.scaleSpare(ctx, rolloutReplicas); err != nil {
		return nil, err
	}
	explains := func(client string, _ loadstats.Path) bool { return client == spareSource }
	return explains, s.answers(ctx, s.spare[0])
}

// scaleSpare waits until the Service has so many endpoints, and no others that end.
func (s *soakRun) scaleSpare(ctx context.Context, replicas int) error {
	if _, err := s.kubectl(ctx, "scale", fmt.Sprintf("--replicas=%d", replicas), "deployment/spare"); err != nil {
		return err
	}
	if err := s.rolledOutIn(ctx, "default", "deployment/spare"); err != nil {
		return err
	}
	return s.podCount(ctx, "app=spare", replicas)
}

func (s *soakRun) rebootNode(ctx context.Context) (explanation, error) {
	n := s.victim()
	pods, err := s.podsOn(ctx, n.index)
	if err != nil {
		return nil, err
	}
	servers := make(map[string]bool)
	for _, p := range pods {
		servers[p.Name] = true
	}
	if err := s.reboot(ctx, n.index); err != nil {
		return nil, err
	}
	if err := s.agentBack(ctx, s.nodes[n.index-1], 0); err != nil {
		return nil, err
	}
	if err := s.restartClient(ctx, n.index); err != nil {
		return nil, err
	}
	if err := s.traffic.watchPods(ctx, "app=client"); err != nil {
		return nil, err
	}
	if err := s.allOpen(ctx, &s.traffic); err != nil {
		return nil, err
	}
	client := podSource(nodeName(n.index))
	s.before[client], err = s.counts(ctx, s.source(client))
	return explainReboot(n.index, servers), err
}

// restartClient replaces the client on a node. Connections that it made before the agent served
// lead through the load balancer, and so through any node.
func (s *soakRun) restartClient(ctx context.Context, i int) error {
	of := metav1.ListOptions{LabelSelector: "app=client", FieldSelector: "spec.nodeName=" + nodeName(i)}
	since, pods := time.Now(), s.client.CoreV1().Pods("default")
	if err := pods.DeleteCollection(ctx, metav1.DeleteOptions{}, of); err != nil {
		return err
	}
	return s.await(ctx, "another client on "+nodeName(i), func() error {
		list, err := pods.List(ctx, of)
		if err != nil {
			return err
		}
		if len(list.Items) != 1 || len(list.Items[0].Status.ContainerStatuses) == 0 {
			return fmt.Errorf("%d pods, not started", len(list.Items))
		}
		return startedSince(&list.Items[0], since)
	})
}

func (s *soakRun) killAgent(ctx context.Context) (explanation, error) {
	n := s.victim()
	pid, err := agentPID(n)
	if err != nil {
		return nil, err
	}
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		return nil, err
	}
	return nil, s.agentBack(ctx, n, pid)
}

// resizeTables gives all tables other sizes, and then their former ones.
func (s *soakRun) resizeTables(ctx context.Context) (explanation, error) {
	flags := []string{
		"--v=2", "--max-flows=65536", "--max-clients=16384", "--max-affinity-entries=16384", "--max-udp-peers=16384",
		"--max-frontends=40000", "--max-services=20000", "--max-backends=40000", "--max-slots=80000", "--max-source-ranges=5000",
	}
	return nil, s.upgradeAndBack(ctx, flags, func(string) error { return nil })
}

// outage is how long the API server is down.
const outage = 30 * time.Second

func (s *soakRun) stopAPIServer(ctx context.Context) (explanation, error) {
	s.end(apiServer)
	if err := settle(ctx, outage); err != nil {
		return nil, err
	}
	return nil, s.startAPIServer(ctx)
}

func (s *soakRun) synFlood(ctx context.Context) (explanation, error) {
	return nil, s.flood(ctx)
}

// underFlood makes a disturbance while a flood goes on, which ends sooner.
func (s *soakRun) underFlood(ctx context.Context, d disturbance) (explanation, error) {
	ended := make(chan error, 1)
	go func() { ended <- s.flood(ctx) }()
	explains, err := d.do(s, ctx)
	return explains, errors.Join(err, <-ended)
}

// floodTime is how long a flood lasts.
const floodTime = 20 * time.Second

// flood floods a Service at all its addresses.
func (s *soakRun) flood(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, floodTime)
	defer cancel()
	sent, err := flood(ctx, s.flooded)
	s.report.flooded += sent
	return err
}

// memoryLeft is what an agent under pressure may use beyond what it does.
const memoryLeft = 2 << 20

// pressMemory lets an agent use hardly more memory than it does, so that the kernel may kill
// it, while pods are replaced.
func (s *soakRun) pressMemory(ctx context.Context) (explanation, error) {
	n := s.victim()
	pid, err := agentPID(n)
	if err != nil {
		return nil, err
	}
	group, err := s.memoryGroupOf(pid)
	if err != nil {
		return nil, err
	}
	if err := group.squeeze(memoryLeft); err != nil {
		return nil, err
	}
	if err := errors.Join(s.replacePods(ctx, "web"), group.release()); err != nil {
		return nil, err
	}
	if now, err := agentPID(n); err != nil || now != pid {
		s.report.outOfMemory++
	}
	return nil, s.agentBack(ctx, n, 0)
}

// source returns a client.
func (s *soakRun) source(name string) source {
	for _, from := range s.traffic.sources {
		if from.name == name {
			return from
		}
	}
	return source{name: name}
}

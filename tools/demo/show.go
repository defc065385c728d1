package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// play is the demo under way.
type play struct {
	*screen
	*stage

	agent *exec.Cmd
	// servers are the web servers at work, by name.
	servers map[string]*exec.Cmd
	web     target
	sticky  target
}

// target is where a Service of the examples is reached.
type target struct {
	clusterIP string
	nodePort  uint16
}

func (t target) url() string { return "http://" + t.clusterIP + "/" }

// show plays all scenes. The error is what kept it from going on, or that claims
// did not hold.
func show(ctx context.Context, screen *screen, stage *stage) error {
	p := &play{screen: screen, stage: stage, servers: make(map[string]*exec.Cmd)}
	fmt.Fprintln(p.out, p.paint(bold, "Beeline: Services, decided when an application connects"))
	scenes := []func(context.Context) error{p.begin, p.balance, p.affinity, p.leave, p.restart}
	for _, scene := range scenes {
		if err := scene(ctx); err != nil {
			return err
		}
	}
	return p.verdict()
}

// begin starts the web servers and the agent.
func (p *play) begin(ctx context.Context) error {
	p.scene("A node, its pods and the agent")
	p.say("Each is a network namespace; all are in one cgroup, which the agent is told to serve.")
	fmt.Fprintf(p.out, "\n     %-9s %-11s %s\n", node, nodeAddr, "bridge")
	for _, pod := range webServers {
		server, err := p.startWebServer(ctx, pod)
		if err != nil {
			return err
		}
		p.servers[pod.name] = server
		fmt.Fprintf(p.out, "     %-9s %-11s web server on port 8080, pid %d\n", pod.name, pod.addr, server.Process.Pid)
	}
	for _, pod := range clients {
		fmt.Fprintf(p.out, "     %-9s %s\n", pod.name, pod.addr)
	}
	fmt.Fprintln(p.out)
	flags, err := p.agentFlags()
	if err != nil {
		return err
	}
	p.prompt(node, "beeline-agent "+strings.Join(flags, " \\\n            "))
	if p.agent, err = p.startAgent(ctx); err != nil {
		return err
	}
	if err := p.findServices(); err != nil {
		return err
	}
	return p.beeline(ctx, "service", "list")
}

func (p *play) findServices() error {
	for name, t := range map[string]*target{"web": &p.web, "sticky": &p.sticky} {
		service, err := p.service(name)
		if err != nil {
			return err
		}
		for _, port := range service.Ports {
			t.nodePort = port.NodePort
			for _, f := range port.Frontends {
				if f.Kind == "ClusterIP" {
					t.clusterIP = f.Address.String()
				}
			}
		}
		if t.clusterIP == "" {
			return fmt.Errorf("service %s has no cluster IP", name)
		}
	}
	return nil
}

// beeline runs the beeline command and prints what it says.
func (p *play) beeline(ctx context.Context, args ...string) error {
	out, err := p.beelineOutput(ctx, args...)
	if err != nil {
		return err
	}
	p.text(out)
	return nil
}

func (p *play) beelineOutput(ctx context.Context, args ...string) (string, error) {
	args = append(args, "--bpffs", p.bpffs())
	fmt.Fprintln(p.out)
	p.prompt(node, "beeline "+strings.Join(args, " "))
	return output(p.in(ctx, node, filepath.Join(p.bin, "beeline"), args...))
}

// curl runs curl quietly in a pod or on the node and returns what it printed, also
// when some of its requests failed.
func (p *play) curl(ctx context.Context, from string, args ...string) (string, error) {
	cmd := p.in(ctx, from, "curl", append([]string{"--silent", "--show-error", "--max-time", "5"}, args...)...)
	out, err := output(cmd)
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.Exited() {
		return out, nil
	}
	return out, err
}

// leadsTo returns what keeps new connections to a Service from going to all of
// these addresses and no others.
func (p *play) leadsTo(name string, addrs map[string]bool) error {
	service, err := p.service(name)
	if err != nil {
		return err
	}
	if have := usable(service); !maps.Equal(have, addrs) {
		return fmt.Errorf("it leads to %v, not to %v", slices.Sorted(maps.Keys(have)), slices.Sorted(maps.Keys(addrs)))
	}
	return nil
}

// names returns the names of pods, in order.
func names(pods []pod) []string {
	list := make([]string, len(pods))
	for i, p := range pods {
		list[i] = p.name
	}
	return list
}

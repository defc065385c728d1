package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"

	"github.com/beeline-lb/beeline/tests/cluster/loadstats"
)

// policyClient is a pod that asks, or who is outside.
type policyClient struct {
	Namespace, Name, Role, Node string // no namespace: outside
	Host                        bool
	addrs                       []string
}

func policyClients() map[string]policyClient {
	near, far := nodeName(1), nodeName(2)
	return map[string]policyClient{
		friendNear:   {Namespace: policyNamespace, Name: "friend-near", Role: "friend", Node: near},
		friendFar:    {Namespace: policyNamespace, Name: "friend-far", Role: "friend", Node: far},
		strangerNear: {Namespace: strangeNamespace, Name: "stranger-near", Role: "stranger", Node: near},
		strangerFar:  {Namespace: strangeNamespace, Name: "stranger-far", Role: "stranger", Node: far},
		hostNear:     {Namespace: policyNamespace, Name: "host-near", Role: "host", Node: near, Host: true},
		hostFar:      {Namespace: policyNamespace, Name: "host-far", Role: "host", Node: far, Host: true},
		outside:      {},
	}
}

// policyAnswer is what came of one request.
type policyAnswer struct {
	Allowed bool
	// Source is whose address the server saw, if it was reached.
	Source policySource `json:",omitempty"`
}

// policyReading is what came of all flows, by the flow and by protocol and family.
type policyReading map[string]map[string]policyAnswer

// askedWith names protocol and family of a request.
func askedWith(protocol corev1.Protocol, family corev1.IPFamily) string {
	return string(protocol) + " " + string(family)
}

// read asks by all flows at once. The error says that a client did not even reach the control,
// which nothing restricts: what it did not reach says nothing then.
func (r *policyRun) read(ctx context.Context) (policyReading, error) {
	reading := make(policyReading)
	var mu sync.Mutex
	var errs []error
	var wg sync.WaitGroup
	for client := range r.clients {
		wg.Go(func() {
			answers, err := r.askFrom(ctx, client)
			mu.Lock()
			defer mu.Unlock()
			maps.Copy(reading, answers)
			if err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", client, err))
			}
		})
	}
	wg.Wait()
	return reading, errors.Join(errs...)
}

// askFrom asks by all flows of a client.
func (r *policyRun) askFrom(ctx context.Context, client string) (policyReading, error) {
	control := toControl
	if client == outside {
		control = toControlNodePort
	}
	targets := r.targets(control)
	for _, f := range policyFlows {
		if f.client == client {
			targets = append(targets, slices.Collect(maps.Values(r.targetsOf(f.frontend)))...)
		}
	}
	stats, err := r.ask(ctx, client, targets)
	if err != nil {
		return nil, err
	}
	for _, target := range r.targets(control) {
		if s := stats[target]; s.Short+s.Datagrams == 0 {
			return nil, fmt.Errorf("the control was not reached: %v", s.Errors)
		}
	}
	reading := make(policyReading)
	for _, f := range policyFlows {
		if f.client != client {
			continue
		}
		answers := make(map[string]policyAnswer)
		for with, target := range r.targetsOf(f.frontend) {
			answers[with] = r.answer(client, stats[target])
		}
		reading[f.String()] = answers
	}
	return reading, nil
}

// answer says what a client's request came to.
func (r *policyRun) answer(client string, s loadstats.Stats) policyAnswer {
	if s.Short+s.Datagrams == 0 {
		return policyAnswer{}
	}
	for addr := range s.Clients {
		return policyAnswer{Allowed: true, Source: r.whose(client, addr)}
	}
	return policyAnswer{Allowed: true, Source: fromUnknown}
}

// whose returns whose address it is that a server saw of a client.
func (r *policyRun) whose(client, addr string) policySource {
	if !r.clients[client].Host && slices.Contains(r.clients[client].addrs, addr) {
		if r.clients[client].Namespace == strangeNamespace {
			return fromStranger
		}
		return fromFriend
	}
	switch {
	case isNode(1, addr):
		return fromNear
	case isNode(2, addr):
		return fromFar
	case slices.Contains([]string{routerAddr4, routerAddr6, clientAddr4, clientAddr6}, addr):
		return fromOutside
	}
	return fromUnknown
}

// isNode reports whether an address is one of the i-th node's: on the fabric, or towards its pods.
func isNode(i int, addr string) bool {
	var own []string
	for _, p := range nodeAddrs(i) {
		own = append(own, p.Addr().String())
	}
	for _, p := range podRanges(i) {
		own = append(own, p.Addr().Next().String())
	}
	return slices.Contains(own, addr)
}

// ask has a client ask targets, and returns what was counted of each.
func (r *policyRun) ask(ctx context.Context, client string, targets []string) (stats map[string]loadstats.Stats, err error) {
	args := []string{"ask", "--targets=" + strings.Join(targets, ",")}
	var out []byte
	if c := r.clients[client]; c.Namespace == "" {
		out, err = exec.CommandContext(ctx, r.loadProgram(), args...).Output()
	} else {
		var text string
		text, err = r.kubectl(ctx, append([]string{"exec", "--namespace=" + c.Namespace, c.Name, "--", "/load"}, args...)...)
		out = []byte(text)
	}
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(out, &stats); err != nil {
		return nil, fmt.Errorf("%w: %s", err, out)
	}
	return stats, nil
}

// Frontends of the control.
const (
	toControl         = "ClusterIP of the control"
	toControlNodePort = "NodePort of the control"
)

// targets returns the URLs of a frontend.
func (r *policyRun) targets(frontend string) []string {
	return slices.Sorted(maps.Values(r.targetsOf(frontend)))
}

// targetsOf returns the URLs of a frontend, by protocol and family.
func (r *policyRun) targetsOf(frontend string) map[string]string {
	all := make(map[string]string)
	for f, family := range policyFamilies {
		for p, protocol := range policyProtocols {
			addr, port := r.frontend(frontend, f, p)
			target := url(addr, port)
			if protocol == corev1.ProtocolUDP {
				target = byUDP([]string{target})[0]
			}
			all[askedWith(protocol, family)] = target
		}
	}
	return all
}

// frontend returns the address of the f-th family and the port of the p-th protocol.
func (r *policyRun) frontend(name string, f, p int) (addr string, port int32) {
	cluster, local := r.services["server"], r.services["server-local"]
	node := func(i int) string { return nodeAddrs(i)[f].Addr().String() }
	switch name {
	case toNodePortNear:
		return node(1), cluster.Spec.Ports[p].NodePort
	case toNodePortFar:
		return node(2), cluster.Spec.Ports[p].NodePort
	case toNodePortLocal:
		return node(1), local.Spec.Ports[p].NodePort
	case toControlNodePort:
		return node(1), r.services["control"].Spec.Ports[p].NodePort
	case toBalancer:
		return cluster.Status.LoadBalancer.Ingress[f].IP, cluster.Spec.Ports[p].Port
	case toBalancerLocal:
		return local.Status.LoadBalancer.Ingress[f].IP, local.Spec.Ports[p].Port
	case toOther:
		return r.services["other"].Spec.ClusterIPs[f], r.services["other"].Spec.Ports[p].Port
	case toControl:
		return r.services["control"].Spec.ClusterIPs[f], r.services["control"].Spec.Ports[p].Port
	default:
		return cluster.Spec.ClusterIPs[f], cluster.Spec.Ports[p].Port
	}
}

// check returns an error that names what is not as the policy says, or comes from another
// address than it must in that cluster.
func (reading policyReading) check(rule policyRule, s settings) error {
	var errs []error
	for _, f := range policyFlows {
		want := f.wanted(rule, s)
		answers := reading[f.String()]
		for _, with := range slices.Sorted(maps.Keys(answers)) {
			if answers[with] != want {
				errs = append(errs, fmt.Errorf("%s, %s: %v, want %v", f, with, answers[with], want))
			}
		}
	}
	return errors.Join(errs...)
}

func (a policyAnswer) String() string {
	if !a.Allowed {
		return "denied"
	}
	return "allowed, the server saw " + string(a.Source)
}

// summary counts the answers.
func (reading policyReading) summary() string {
	allowed, denied := 0, 0
	for _, answers := range reading {
		for _, a := range answers {
			if a.Allowed {
				allowed++
			} else {
				denied++
			}
		}
	}
	return fmt.Sprintf("%d requests allowed, %d denied", allowed, denied)
}

func hostNet(ip string) *net.IPNet {
	addr := netip.MustParseAddr(ip)
	return ipNet(netip.PrefixFrom(addr, addr.BitLen()))
}

package netns_test

import (
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/datapath"
	"github.com/beeline-lb/beeline/pkg/inspect"
	"github.com/beeline-lb/beeline/pkg/inspect/cli"
	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/tests/lab"
	"github.com/beeline-lb/beeline/tests/tier"
)

// explainedPorts are those of the endpoints of every Service that is explained.
const explainedPorts = "web:8080/TCP,dns:8080/UDP"

// explained is a Service that connections are explained to. Its addresses are made of its number.
type explained struct {
	name      string
	spec      string // of the Service
	algorithm string
	endpoints func(family string) []string // of a slice
	ranges    bool                         // loadBalancerSourceRanges let in the pod alone
}

// endpoints returns those of the host's first addresses, with more fields of YAML for each.
func endpoints(fields ...string) func(string) []string {
	return func(family string) (list []string) {
		for i, f := range fields {
			addr := lab.Backend4(i + 1)
			if family == "6" {
				addr = lab.Backend6(i + 1)
			}
			list = append(list, fmt.Sprintf("{addresses: [%q]%s}", addr, f))
		}
		return list
	}
}

const (
	here        = ", nodeName: node-1"
	elsewhere   = ", nodeName: node-2"
	notReady    = ", conditions: {ready: false, serving: false}"
	terminating = ", conditions: {ready: false, serving: true, terminating: true}"
)

// explainedServices are of every policy, algorithm and state of endpoints.
func explainedServices() []explained {
	list := []explained{
		{name: "none", endpoints: endpoints()},
		{name: "notready", endpoints: endpoints(notReady, notReady)},
		{name: "some", endpoints: endpoints(here, elsewhere+notReady, elsewhere)},
		{name: "draining", endpoints: endpoints(terminating, notReady, terminating)},
		{name: "leaving", endpoints: endpoints("", terminating, "")},
		{name: "local", spec: "internalTrafficPolicy: Local, externalTrafficPolicy: Local,", endpoints: endpoints(here, elsewhere, here)},
		{name: "nolocal", spec: "internalTrafficPolicy: Local,", endpoints: endpoints(elsewhere, elsewhere)},
		{name: "outlocal", spec: "externalTrafficPolicy: Local,", endpoints: endpoints(elsewhere, elsewhere)},
		{name: "sticky", spec: "sessionAffinity: ClientIP,", endpoints: endpoints("", "", "", "")},
		{name: "ranges", ranges: true, endpoints: endpoints("", "", "")},
	}
	for _, algorithm := range model.Algorithms() {
		list = append(list, explained{name: "by-" + algorithm, algorithm: algorithm, endpoints: endpoints("", "", "")})
	}
	return list
}

// manifests returns those of the Service with the number.
func (e *explained) manifests(number int) []string {
	ranges := ""
	if e.ranges {
		ranges = `loadBalancerSourceRanges: ["10.88.0.0/16", "fd88::/16"],`
	}
	service := lab.Service(e.name, fmt.Sprintf(`{type: LoadBalancer, clusterIPs: [10.96.1.%[1]d, "fd96::1:%[1]d"], %[2]s %[3]s`+
		` externalIPs: [203.0.113.%[1]d, "2001:db8:2::%[1]d"], ports: [{name: web, port: 80, nodePort: %[4]d},`+
		` {name: dns, port: 53, protocol: UDP, nodePort: %[4]d}]}`, number, e.spec, ranges, 30000+number),
		fmt.Sprintf(`status: {loadBalancer: {ingress: [{ip: 198.51.100.%[1]d}, {ip: "2001:db8:3::%[1]d"}]}}`, number))
	if e.algorithm != "" {
		service = annotate(service, "", "algorithm", e.algorithm)
	}
	return []string{service, lab.SliceOf(e.name, explainedPorts, e.endpoints("4")...), lab.SliceOf(e.name, explainedPorts, e.endpoints("6")...)}
}

// explainedTo returns the addresses of the Service with a number, and others beside them.
func explainedTo(number int) (list []netip.AddrPort) {
	for _, addr := range []string{"10.96.1.%d", "203.0.113.%d", "198.51.100.%d", "fd96::1:%d", "2001:db8:2::%d", "2001:db8:3::%d"} {
		for _, port := range []uint16{80, 53, 81} {
			list = append(list, netip.AddrPortFrom(netip.MustParseAddr(fmt.Sprintf(addr, number)), port))
		}
	}
	for _, addr := range []netip.Addr{lab.Node4, lab.Node6, netip.MustParseAddr("127.0.0.1"), lab.PodGateway4} {
		list = append(list, netip.AddrPortFrom(addr, uint16(30000+number)))
	}
	return list
}

// explainer explains connections of a host's clients.
type explainer struct {
	t *testing.T
	*inspect.Explainer
}

func newExplainer(t *testing.T, h *lab.Host) *explainer {
	t.Helper()
	d, err := inspect.Open(h.BPFFS)
	if err != nil {
		t.Fatal(err)
	}
	e := d.Explainer()
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return &explainer{t, e}
}

// explain explains a connection of a socket in a namespace.
func (e *explainer) explain(n *lab.Namespace, network string, to netip.AddrPort) *inspect.Explanation {
	e.t.Helper()
	var x *inspect.Explanation
	err := n.Run(func() (err error) {
		protocol := model.TCP
		if network[:3] == "udp" {
			protocol = model.UDP
		}
		x, err = e.Explain(inspect.ExplainOptions{To: to, Protocol: protocol})
		return err
	})
	if err != nil {
		e.t.Fatalf("explain %s to %s: %v", network, to, err)
	}
	return x
}

// try connects and sends, by sendto() in case of UDP, and returns who answers.
func try(n *lab.Namespace, network string, to netip.AddrPort) (netip.AddrPort, error) {
	if network[:3] != "udp" {
		return n.Reach(network, to)
	}
	s := n.Socket(network)
	defer s.Close()
	if err := s.SendTo("who", to); err != nil {
		return netip.AddrPort{}, err
	}
	answer, _, err := s.Receive()
	if err != nil {
		return netip.AddrPort{}, err
	}
	return netip.ParseAddrPort(answer)
}

// agree makes the connection that was explained and fails unless it ends as was said.
func agree(t *testing.T, x *inspect.Explanation, n *lab.Namespace, network string, to netip.AddrPort) {
	t.Helper()
	if x.Verdict == inspect.VerdictNoService {
		return // it is nobody's but the kernel's
	}
	got, err := try(n, network, to)
	var want error
	switch x.Verdict {
	case inspect.VerdictRefused:
		want = unix.ECONNREFUSED
	case inspect.VerdictDropped:
		want = unix.EHOSTUNREACH
	}
	if err != want {
		t.Errorf("%s to %s: %v, want %v, explained as %v", network, to, err, want, x.Steps)
		return
	}
	if want != nil {
		return
	}
	if x.Certain && got != netip.AddrPortFrom(x.Chosen.Address, x.Chosen.TargetPort) {
		t.Errorf("%s to %s: reached %s, explained as %v", network, to, got, x.Steps)
	}
	if !slices.ContainsFunc(x.Backends, func(b inspect.ExplainedBackend) bool {
		return b.Share > 0 && netip.AddrPortFrom(b.Address, b.TargetPort) == got
	}) {
		t.Errorf("%s to %s: reached %s, explained with %+v", network, to, got, x.Backends)
	}
}

// TestExplainSockets: every connection ends as was explained before, and an explanation leaves all
// maps as they were, byte by byte. No agent runs.
func TestExplainSockets(t *testing.T) {
	tier.SameInEveryKernel(t)
	t.Parallel()
	h, a := newHost(t, lab.AgentOptions{ServiceRanges: serviceRanges})
	var manifests []string
	services := explainedServices()
	for i := range services {
		manifests = append(manifests, services[i].manifests(i+1)...)
	}
	a.Apply(manifests...)
	a.Stop()
	e := newExplainer(t, h)
	type made struct {
		n       *lab.Namespace
		network string
		to      netip.AddrPort
		x       *inspect.Explanation
	}
	var list []made
	verdicts := make(map[string]int)
	before := h.Dump()
	for i := range services {
		for _, to := range tier.Share(t, append(explainedTo(i+1), ap("10.96.7.7:80"), ap("[fd96::7:7]:80")), i, 4) {
			for _, protocol := range []string{"tcp", "udp"} {
				network := protocol + "4"
				if to.Addr().Is6() {
					network = protocol + "6"
				}
				n := []*lab.Namespace{h.Namespace, h.Pod}[(i+len(list))%2]
				x := e.explain(n, network, to)
				list = append(list, made{n, network, to, x})
				verdicts[x.Verdict]++
			}
		}
	}
	lab.CompareDumps(t, before, h.Dump())
	for _, m := range list {
		agree(t, m.x, m.n, m.network, m.to)
	}
	for _, v := range []string{inspect.VerdictServed, inspect.VerdictRefused, inspect.VerdictDropped, inspect.VerdictNoService} {
		if verdicts[v] == 0 {
			t.Errorf("nothing is %s: %v", v, verdicts)
		}
	}
}

// TestExplainAffinity: the backend that affinity remembers is named, until that has expired.
func TestExplainAffinity(t *testing.T) {
	tier.SameInEveryKernel(t)
	t.Parallel()
	h, a := newHost(t, lab.AgentOptions{})
	sticky := explained{name: "sticky", spec: "sessionAffinity: ClientIP,", endpoints: endpoints("", "", "", "", "", "")}
	a.Apply(sticky.manifests(1)...)
	e := newExplainer(t, h)
	for network, to := range map[string]netip.AddrPort{"tcp4": ap("10.96.1.1:80"), "udp6": ap("[fd96::1:1]:53")} {
		if x := e.explain(h.Pod, network, to); x.Affinity != nil || x.Certain {
			t.Errorf("%s: before the first connection: %v", network, x.Steps)
		}
		got := mustReach(t, h.Pod, network, to)
		x := e.explain(h.Pod, network, to)
		if x.Affinity == nil || !x.Affinity.Used || !x.Certain || netip.AddrPortFrom(x.Chosen.Address, x.Chosen.TargetPort) != got {
			t.Errorf("%s: after a connection to %s: %v", network, got, x.Steps)
		}
		agree(t, x, h.Pod, network, to)
	}
	h.AgeAffinity(4 * time.Hour)
	if x := e.explain(h.Pod, "tcp4", ap("10.96.1.1:80")); x.Affinity == nil || x.Affinity.Used || x.Certain {
		t.Errorf("after it has expired: %v", x.Steps)
	}
}

// TestExplainCommand: the cause of what does not work is found with one command, and the exit code
// says what would become of the connection.
func TestExplainCommand(t *testing.T) {
	tier.SameInEveryKernel(t)
	t.Parallel()
	h, a := newHost(t, lab.AgentOptions{ServiceRanges: serviceRanges, Devices: []string{lab.Uplink}})
	service := func(name string, number int, fields, more string) string {
		return lab.Service(name, fmt.Sprintf(`{type: LoadBalancer, clusterIP: 10.96.2.%[1]d, %[2]s ports: [{port: 80, nodePort: %[3]d}]}`,
			number, fields, 31000+number), fmt.Sprintf("status: {loadBalancer: {ingress: [{ip: 203.0.113.%d}]}}", number), more)
	}
	a.Apply(service("web", 1, "", ""), lab.Slice("web", "8080/TCP", backends4(2)...),
		service("typo", 2, "", ""),
		service("logs", 3, "internalTrafficPolicy: Local,", ""), lab.SliceOf("logs", "8080/TCP", endpoints(elsewhere, elsewhere)("4")...),
		service("admin", 4, `loadBalancerSourceRanges: ["198.51.100.0/24"],`, ""), lab.Slice("admin", "8080/TCP", backends4(1)...),
		service("here", 5, "", ""), lab.SliceOf("here", "8080/TCP", "{addresses: [127.0.0.1]}"))
	a.Stop()
	h.Pod.Populate() // pods have processes
	for _, tt := range []struct {
		args []string
		code int
		says []string
	}{
		{[]string{"10.96.2.1:80"}, cli.ExitOK, []string{"served", "ClusterIP 10.96.2.1:80 of default/web", "50.0 %"}},
		{[]string{"--from", "10.88.0.2", "10.96.2.1:80"}, cli.ExitOK, []string{"a pod of this node"}},
		{[]string{"10.96.2.1:81"}, cli.ExitRefused, []string{"81/TCP is no port at 10.96.2.1, which has 80/TCP of default/web", "undeclared_port", "ECONNREFUSED"}},
		{[]string{"10.96.2.1:80/udp"}, cli.ExitRefused, []string{"80/UDP is no port"}},
		{[]string{"10.96.2.9:80"}, cli.ExitDropped, []string{"no Service has the address 10.96.2.9", "unallocated_address"}},
		{[]string{"10.96.2.2:80"}, cli.ExitRefused, []string{"no endpoint", "no_endpoint"}},
		{[]string{"10.96.2.3:80"}, cli.ExitDropped, []string{"no_local_endpoint", "on another node, and the policy is Local"}},
		{[]string{"--from", "192.0.2.2", "203.0.113.4:80"}, cli.ExitDropped, []string{"198.51.100.0/24", "the client is in none of them", "source_range"}},
		{[]string{"--from", "192.0.2.2", "192.0.2.1:31001"}, cli.ExitOK, []string{"NodePort 192.0.2.1:31001 of default/web", "come in by uplink", "tc alone sees them"}},
		{[]string{"127.0.0.1:31001"}, cli.ExitOK, []string{"NodePort 127.0.0.1:31001 of default/web"}},
		{[]string{"10.96.2.5:80"}, cli.ExitOK, []string{"served by 127.0.0.1:8080"}},
		{[]string{"--from", "192.0.2.2", "203.0.113.5:80"}, cli.ExitDropped, []string{"martian_destination", "127.0.0.1 can be reached by processes of this host alone", "connections of the Service port"}},
		{[]string{"--from", "10.88.0.77", "203.0.113.1:80"}, cli.ExitNotFound, []string{"no program sees it", "none of the devices that face clients"}},
		{[]string{"192.0.2.1:31999"}, cli.ExitNotFound, []string{"no Service has the NodePort 31999/TCP"}},
		{[]string{"192.0.2.2:80"}, cli.ExitNotFound, []string{"an address of no Service"}},
		{[]string{"default/web"}, cli.ExitOK, []string{"10.96.2.1:80/TCP: served", "203.0.113.1:80/TCP: served", "10.77.0.1:31001/TCP: served",
			"served, too, at 10.77.0.2, 10.77.0.3,", "to processes in the node's network namespace alone at 0.0.0.0, 127.0.0.1"}},
		{[]string{"default/typo"}, cli.ExitRefused, []string{"203.0.113.2:80/TCP: refused"}},
		{[]string{"default/no"}, cli.ExitNotFound, nil},
		{[]string{"--from", "2001:db8::7", "default/web"}, cli.ExitNotFound, []string{"service default/web has no IPv6 frontend", "2001:db8::7"}},
		{[]string{"10.96.2.1"}, cli.ExitUsage, nil},
		{[]string{"--from", "shop/web-0", "10.96.2.1:80"}, cli.ExitFailure, []string{`"shop/web-0" is no address`, "name a pod by its address", "kubectl beeline explain"}},
		{[]string{"-o", "json", "10.96.2.2:80"}, cli.ExitRefused, []string{`"verdict": "refused"`, `"reason": "no_endpoint"`}},
	} {
		ask(t, h, "explain", "explain "+strings.Join(tt.args, " "), tt.code, tt.says)
	}
}

// TestExplainNotForwarded: packets of a client outside for a pod are explained as dropped while the kernel
// does not forward them, and as served when it does: then they get there.
func TestExplainNotForwarded(t *testing.T) {
	tier.SameInEveryKernel(t)
	t.Parallel()
	h, a := newHost(t, lab.AgentOptions{ServiceRanges: serviceRanges, Devices: []string{lab.Uplink}})
	a.Apply(lab.Service("web", `{type: NodePort, clusterIPs: [10.96.2.1, "fd96::2:1"], ports: [{port: 80, nodePort: 31001}]}`),
		lab.Slice("web", "8080/TCP", lab.Pod4), lab.Slice("web", "8080/TCP", lab.Pod6))
	for _, tt := range []struct {
		network, from  string
		to             netip.AddrPort
		pod            netip.Addr
		setting, named string
	}{
		{"tcp4", lab.Outside4.String(), netip.AddrPortFrom(lab.Node4, 31001), lab.Pod4, "ipv4/conf/all/forwarding", "net.ipv4.conf.uplink.forwarding is 0"},
		{"tcp6", lab.Outside6.String(), netip.AddrPortFrom(lab.Node6, 31001), lab.Pod6, "ipv6/conf/all/forwarding", "net.ipv6.conf.all.forwarding is 0"},
	} {
		words := fmt.Sprintf("explain --from %s %s", tt.from, tt.to)
		h.SetSysctl(tt.setting, "0")
		ask(t, h, "not forwarded", words, cli.ExitDropped, []string{"not_forwarded", tt.named, "connections of the Service port"})
		h.SetSysctl(tt.setting, "1")
		ask(t, h, "forwarded", words, cli.ExitOK, []string{"takes the packet on"})
		h.Pod.ServeTCP(netip.AddrPortFrom(tt.pod, lab.BackendPort))
		if at, err := h.Outside.Reach(tt.network, tt.to); err != nil || at.Addr() != tt.pod {
			t.Errorf("%s, forwarded: reached %s, %v", tt.network, at, err)
		}
	}
}

// TestExplainReplyNotForwarded: the same where the kernel forwards what comes from the client, but no reply of the pod.
func TestExplainReplyNotForwarded(t *testing.T) {
	tier.SameInEveryKernel(t)
	t.Parallel()
	h, a := newHost(t, lab.AgentOptions{ServiceRanges: serviceRanges, Devices: []string{lab.Uplink}})
	a.Apply(lab.Service("web", `{type: NodePort, clusterIP: 10.96.2.1, ports: [{port: 80, nodePort: 31001}]}`), lab.Slice("web", "8080/TCP", lab.Pod4))
	words := fmt.Sprintf("explain --from %s %s:31001", lab.Outside4, lab.Node4)
	h.SetSysctl("ipv4/conf/all/forwarding", "0")
	h.SetSysctl("ipv4/conf/"+lab.Uplink+"/forwarding", "1")
	ask(t, h, "one way", words, cli.ExitDropped, []string{"not_forwarded", "net.ipv4.conf.pod0.forwarding is 0"})
	h.SetSysctl("ipv4/conf/pod0/forwarding", "1")
	ask(t, h, "both ways", words, cli.ExitOK, []string{"takes the packet on"})
	h.Pod.ServeTCP(netip.AddrPortFrom(lab.Pod4, lab.BackendPort))
	if at, err := h.Outside.Reach("tcp4", netip.AddrPortFrom(lab.Node4, 31001)); err != nil || at.Addr() != lab.Pod4 {
		t.Errorf("reached %s, %v", at, err)
	}
}

// TestExplainDetached: where the link of connect() is detached, and no agent mends it, packets of a process of the node
// are explained, and its connection is served by them; a pod's is not. sendmsg() is another program.
func TestExplainDetached(t *testing.T) {
	tier.SameInEveryKernel(t)
	t.Parallel()
	h, a := newHost(t, lab.AgentOptions{ServiceRanges: serviceRanges, Devices: []string{lab.Uplink}})
	web := explained{name: "web", endpoints: endpoints("")}
	a.Apply(web.manifests(1)...)
	a.Stop()
	h.Pod.Populate() // pods have processes
	e := newExplainer(t, h)
	for _, network := range []string{"tcp4", "tcp6"} {
		to := ap("10.96.1.1:80")
		if network == "tcp6" {
			to = ap("[fd96::1:1]:80")
		}
		if x := e.explain(h.Namespace, network, to); x.Path == nil || x.Path.Hook != "socket" {
			t.Errorf("%s, attached: %v", network, x.Steps)
		}
		detach(t, h, "link_bl_connect"+network[3:])
		x := e.explain(h.Namespace, network, to)
		if x.Client.Kind != "node-packet" {
			t.Errorf("%s, detached: %v", network, x.Steps)
		}
		agree(t, x, h.Namespace, network, to)
	}
	if x := e.explain(h.Namespace, "udp4", ap("10.96.1.1:53")); x.Path == nil || x.Path.Hook != "socket" {
		t.Errorf("UDP: %v", x.Steps)
	}
	ask(t, h, "a pod", "explain --from "+lab.Pod4.String()+" 10.96.1.1:80", cli.ExitNotFound, []string{"bl_connect4 is attached to no cgroup", "no program serves packets"})
}

// detach detaches a pinned link, whose pin stays.
func detach(t *testing.T, h *lab.Host, pin string) {
	t.Helper()
	l, err := link.LoadPinnedLink(filepath.Join(datapath.Dir(h.BPFFS), pin), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(l.Detach(), l.Close()); err != nil {
		t.Fatal(err)
	}
}

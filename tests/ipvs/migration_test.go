// Package ipvs_test moves a node from kube-proxy in mode ipvs to Beeline, as docs/migrate-from-ipvs.md says.
package ipvs_test

import (
	"bytes"
	"errors"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"sigs.k8s.io/yaml"

	"github.com/beeline-lb/beeline/pkg/inspect/cli"
	"github.com/beeline-lb/beeline/tests/lab"
	"github.com/beeline-lb/beeline/tests/memoryapi"
	"github.com/beeline-lb/beeline/tests/tier"
)

func TestMain(m *testing.M) { os.Exit(lab.Main(m)) }

var apiAddr = netip.MustParseAddrPort("127.0.0.1:6443")

// config is that of both proxies.
const config = `apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: ipvs
ipvs: {scheduler: lc}
hostnameOverride: ` + lab.NodeName + `
nodePortAddresses: [192.0.2.0/24, "2001:db8::/64"]
clusterCIDR: 10.88.0.0/16,fd88::/48
conntrack: {maxPerCore: 0, min: 0}
oomScoreAdj: 0
clientConnection: {contentType: application/json, kubeconfig: `

var (
	clusterIPs = map[string]netip.AddrPort{"tcp4": netip.MustParseAddrPort("10.96.0.1:80"), "tcp6": netip.MustParseAddrPort("[fd96::1]:80")}
	nodePorts  = map[string]netip.AddrPort{"tcp4": netip.AddrPortFrom(lab.Node4, 30080), "tcp6": netip.AddrPortFrom(lab.Node6, 30080)}
)

// node is a host whose Service proxies are started one after the other.
type node struct {
	*lab.Host
	t      *testing.T
	config string
}

func newNode(t *testing.T) *node {
	t.Helper()
	n := &node{Host: lab.NewHost(t), t: t}
	for _, family := range []string{"ipv4", "ipv6"} {
		n.SetSysctl(family+"/conf/all/forwarding", "1")
	}
	n.ServeBackends()
	n.serveAPI()
	dir := t.TempDir()
	kubeconfig := filepath.Join(dir, "kubeconfig")
	n.config = filepath.Join(dir, "config.yaml")
	for path, text := range map[string]string{kubeconfig: memoryapi.Kubeconfig(apiAddr), n.config: config + kubeconfig + "}\n"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return n
}

// serveAPI starts an API server that has one Service, with three endpoints of each family.
func (n *node) serveAPI() {
	n.t.Helper()
	api := memoryapi.New()
	put[networkingv1.ServiceCIDR](n.t, api, "servicecidrs",
		"metadata: {name: kubernetes}\nspec: {cidrs: [10.96.0.0/16, \"fd96::/112\"]}")
	put[corev1.Node](n.t, api, "nodes",
		"metadata: {name: "+lab.NodeName+"}\nstatus: {addresses: [{type: InternalIP, address: "+lab.Node4.String()+"}, {type: InternalIP, address: \""+lab.Node6.String()+"\"}]}")
	put[corev1.Service](n.t, api, "services",
		lab.Service("web", `{clusterIP: 10.96.0.1, clusterIPs: [10.96.0.1, "fd96::1"], ipFamilies: [IPv4, IPv6], type: NodePort,`+
			` internalTrafficPolicy: Cluster, externalTrafficPolicy: Cluster, sessionAffinity: None, ports: [{protocol: TCP, port: 80, nodePort: 30080}]}`))
	put[discoveryv1.EndpointSlice](n.t, api, "endpointslices",
		lab.Slice("web", "8080/TCP", lab.Backend4(1), lab.Backend4(2), lab.Backend4(3)),
		lab.Slice("web", "8080/TCP", lab.Backend6(1), lab.Backend6(2), lab.Backend6(3)))
	n.ServeHTTP(apiAddr, api)
}

// put gives the server the objects of a kind.
func put[T any, O interface {
	*T
	memoryapi.Object
}](t *testing.T, api *memoryapi.Server, kind string, manifests ...string) {
	t.Helper()
	var list []O
	for _, text := range manifests {
		o := O(new(T))
		if err := yaml.Unmarshal([]byte(text), o); err != nil {
			t.Fatal(err)
		}
		list = append(list, o)
	}
	memoryapi.Replace(api, kind, list, func(O, O) bool { return false })
}

// held is an open connection.
type held struct {
	network string
	from    string
	opened  string
	socket  *lab.Socket
}

// ofNode is the client that is a process of the node.
const ofNode = "the node"

// connect opens a connection from each kind of client, by each family.
func (n *node) connect(when string) (all []held) {
	n.t.Helper()
	for network := range clusterIPs {
		for _, c := range []struct {
			name string
			from *lab.Namespace
			to   netip.AddrPort
		}{
			{"a pod", n.Pod, clusterIPs[network]},
			{ofNode, n.Namespace, clusterIPs[network]},
			{"outside", n.Outside, nodePorts[network]},
		} {
			s := c.from.Socket(network)
			err := s.Connect(c.to)
			if err == nil {
				_, _, err = s.Receive()
			}
			if err != nil {
				n.t.Errorf("%s: %s from %s: %v", when, network, c.name, err)
				continue
			}
			all = append(all, held{network, c.name, when, s})
		}
	}
	return all
}

// check says which of the connections do not go on.
func (n *node) check(all []held, when string) {
	n.t.Helper()
	for _, c := range all {
		if got, err := c.socket.Ask(when); err != nil || got != when {
			n.t.Errorf("%s from %s, opened %s: %s: %q, %v", c.network, c.from, c.opened, when, got, err)
		}
	}
}

// ipvs returns what the kernel shows of virtual servers.
func (n *node) ipvs() (text string) {
	n.t.Helper()
	err := n.Thread(func() error {
		data, err := os.ReadFile("/proc/thread-self/net/ip_vs")
		text = string(data)
		return err
	})
	if err != nil {
		n.t.Skipf("this kernel has no IPVS, make test-kernels boots one that has: %v", err)
	}
	return text
}

// checkList compares what the command shows as ipvsadm does with what kube-proxy has made.
func (n *node) checkList() {
	n.t.Helper()
	var out, errs bytes.Buffer
	env := cli.Env{Out: &out, Err: &errs, Now: time.Now}
	if code := cli.Run(n.t.Context(), env, "--bpffs", n.BPFFS, "service", "list", "-o", "ipvsadm"); code != cli.ExitOK {
		n.t.Errorf("beeline: exit code %d: %s", code, errs.String())
	}
	text := strings.Join(strings.Fields(out.String()), " ")
	for network, backend := range map[string]func(int) netip.Addr{"tcp4": lab.Backend4, "tcp6": lab.Backend6} {
		want := "TCP " + clusterIPs[network].String() + " lc"
		for i := range 3 {
			want += " -> " + netip.AddrPortFrom(backend(i+1), lab.BackendPort).String() + " Masq 1 1 -"
		}
		if !strings.Contains(text, want) {
			n.t.Errorf("%q is not in\n%s", want, out.String())
		}
	}
}

// TestMigration: connections that kube-proxy set up go on beside Beeline, without kube-proxy, and new ones are Beeline's;
// the cleanup leaves nothing of kube-proxy, and what Beeline set up goes on.
func TestMigration(t *testing.T) {
	n := newNode(t)
	n.ipvs()
	if _, err := exec.LookPath("kube-proxy"); err != nil {
		if tier.Emulated() && runtime.GOARCH == "amd64" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	t.Setenv("PATH", lab.IPTables(t, "nft")+":"+os.Getenv("PATH"))
	kubeProxy := n.Start("kube-proxy", "--config="+n.config)
	lab.Eventually(t, "kube-proxy has made its virtual servers", func() bool {
		return kubeProxy.Ended() || strings.Count(n.ipvs(), " Masq ") == 4*3
	})
	// IPVS itself resets a connection of the node's own over IPv6, with its first bytes, to an endpoint that
	// is the node's address.
	before := slices.DeleteFunc(n.connect("with kube-proxy"), func(h held) bool { return h.network == "tcp6" && h.from == ofNode })
	n.check(before, "with kube-proxy")

	agent := n.Start(lab.AgentBinary(t), "--config="+n.config, "--cgroup-root="+n.Cgroup, "--bpffs="+n.BPFFS,
		"--max-flows=16384", "--max-clients=4096", "--max-affinity-entries=4096", "--max-udp-peers=4096")
	lab.Eventually(t, "the agent serves", func() bool { return agent.Ended() || strings.Contains(agent.Output(), `"Serving"`) })
	n.check(before, "beside kube-proxy")
	active := n.ipvs()
	after := n.connect("beside kube-proxy")
	n.check(after, "beside kube-proxy")
	if now := n.ipvs(); now != active {
		t.Errorf("new connections are IPVS's:\n%s\nbefore:\n%s", now, active)
	}
	n.checkList()

	kubeProxy.Signal(unix.SIGTERM)
	_ = kubeProxy.Wait() // by the signal
	n.check(slices.Concat(before, after), "without kube-proxy")
	agent.Signal(unix.SIGTERM)
	if err := agent.Wait(); err != nil {
		t.Errorf("the agent: %v", err)
	}
	if out, err := n.Output(lab.AgentBinary(t), "--config="+n.config, "--cleanup-kube-proxy"); err != nil {
		var why []byte
		if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
			why = exit.Stderr
		}
		t.Errorf("cleanup: %s, %v: %s", out, err, why)
	}
	if left := n.ipvs(); strings.Contains(left, " Masq ") {
		t.Errorf("left of kube-proxy:\n%s", left)
	}
	if err := n.Run(func() error { _, err := net.InterfaceByName("kube-ipvs0"); return err }); err == nil {
		t.Error("kube-ipvs0 is left")
	}
	for _, c := range before {
		if err := c.socket.Send("x"); err != nil {
			t.Errorf("%s from %s, opened %s: %v", c.network, c.from, c.opened, err)
		}
	}
	n.check(after, "after the cleanup")
	n.check(n.connect("after the cleanup"), "in the end")
	for _, c := range before {
		if !c.socket.Ready(0) {
			continue // dropped
		}
		if got, _, err := c.socket.Receive(); !errors.Is(err, unix.ECONNRESET) {
			t.Errorf("%s from %s, opened %s, after the cleanup: %q, %v, and the documentation has it break", c.network, c.from, c.opened, got, err)
		}
	}
}

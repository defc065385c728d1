package packets_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"unsafe"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/datapath"
	"github.com/beeline-lb/beeline/pkg/devicemap"
	"github.com/beeline-lb/beeline/tests/lab"
	"github.com/beeline-lb/beeline/tests/programs"
	"github.com/beeline-lb/beeline/tests/tier"
)

// A sidecar: its user, whose connections no rule catches, and its ports.
const (
	sidecarUID  = 1337
	sidecarPort = 15001
	sidecarDNS  = 15053
)

// sidecar is a proxy in a pod that asks where the connections went that rules have brought it, and
// goes on there itself.
type sidecar struct {
	pod *lab.Namespace

	mu   sync.Mutex
	seen []netip.AddrPort // the original destinations
}

// serveSidecar starts the proxy in a pod, which gets a process. Its sockets are of its user: Istio
// tells connections of its name server by that.
func serveSidecar(t *testing.T, pod *lab.Namespace) *sidecar {
	t.Helper()
	s := &sidecar{pod: pod}
	pod.Populate()
	var listener net.Listener
	var datagrams []net.PacketConn
	err := s.as(func() (err error) {
		var config net.ListenConfig
		if listener, err = config.Listen(context.Background(), "tcp", fmt.Sprintf("[::]:%d", sidecarPort)); err != nil {
			return err
		}
		for _, host := range []string{"127.0.0.1", "::1"} {
			conn, err := config.ListenPacket(context.Background(), "udp", net.JoinHostPort(host, fmt.Sprint(sidecarDNS)))
			if err != nil {
				return err
			}
			datagrams = append(datagrams, conn)
		}
		return nil
	})
	if err != nil {
		t.Fatalf("listen as a sidecar: %v", err)
	}
	t.Cleanup(func() { listener.Close() })
	for _, conn := range datagrams {
		t.Cleanup(func() { conn.Close() })
		go serveUDP(conn, "sidecar")
	}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go s.relay(conn.(*net.TCPConn))
		}
	}()
	return s
}

// relay serves a connection that was caught.
func (s *sidecar) relay(conn *net.TCPConn) {
	defer conn.Close()
	to, err := originalDestination(conn)
	if err != nil {
		return
	}
	s.mu.Lock()
	s.seen = append(s.seen, to)
	s.mu.Unlock()
	var on net.Conn
	err = s.as(func() (err error) {
		on, err = net.Dial("tcp", to.String())
		return err
	})
	if err != nil {
		return
	}
	defer on.Close()
	go func() { _, _ = io.Copy(conn, on) }() // ends with the connections
	_, _ = io.Copy(on, conn)
}

// as calls fn on a thread of the sidecar's user in the pod.
func (s *sidecar) as(fn func() error) error {
	return s.pod.Thread(func() error {
		if err := syscall.Setfsuid(sidecarUID); err != nil {
			return err
		}
		return fn()
	})
}

// last returns the original destination of the last connection, and forgets all.
func (s *sidecar) last() (to netip.AddrPort) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.seen) > 0 {
		to = s.seen[len(s.seen)-1]
	}
	s.seen = nil
	return to
}

// originalDestination returns where a connection was going before REDIRECT (SO_ORIGINAL_DST).
func originalDestination(conn *net.TCPConn) (to netip.AddrPort, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return to, err
	}
	var addr unix.RawSockaddrInet6
	level, size := unix.SOL_IPV6, uint32(unix.SizeofSockaddrInet6)
	if conn.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap().Is4() {
		level, size = unix.SOL_IP, unix.SizeofSockaddrInet4
	}
	var errno syscall.Errno
	err = raw.Control(func(fd uintptr) {
		const original = 80 // SO_ORIGINAL_DST, IP6T_SO_ORIGINAL_DST
		_, _, errno = unix.Syscall6(unix.SYS_GETSOCKOPT, fd, uintptr(level), original, uintptr(unsafe.Pointer(&addr)), uintptr(unsafe.Pointer(&size)), 0)
	})
	if err != nil || errno != 0 {
		return to, fmt.Errorf("SO_ORIGINAL_DST: %w %w", err, errno)
	}
	port := binary.BigEndian.Uint16((*[2]byte)(unsafe.Pointer(&addr.Port))[:])
	if level == unix.SOL_IP {
		return netip.AddrPortFrom(netip.AddrFrom4((*unix.RawSockaddrInet4)(unsafe.Pointer(&addr)).Addr), port), nil
	}
	return netip.AddrPortFrom(netip.AddrFrom16(addr.Addr), port), nil
}

// sidecarRules say whose rules catch the connections of a pod.
type sidecarRules struct {
	name string
	// rules writes them into a pod, with what captures datagrams to port 53 unless dns is unset,
	// for IPv6 unless ipv4 is set.
	rules     func(t *testing.T, pod *lab.Namespace)
	dns, ipv4 bool
	// variant are rules that others stand for, see [tier.Variant]; those of a mesh's own program, which has to
	// be built, are.
	variant bool
}

// run runs a program in a pod.
func run(t *testing.T, pod *lab.Namespace, name string, args ...string) {
	t.Helper()
	if out, err := pod.Output(name, args...); err != nil {
		t.Fatalf("%s %s: %s %s", name, strings.Join(args, " "), out, failure(err))
	}
}

// plainRules are those of Istio as far as they matter, without any of its programs.
func plainRules(t *testing.T, pod *lab.Namespace) {
	t.Helper()
	lab.Need(t, "nft")
	for _, family := range []string{"ip", "ip6"} {
		run(t, pod, "nft", fmt.Sprintf(`table %s mesh {
	chain output {
		type nat hook output priority -100;
		meta skuid %d return
		udp dport 53 redirect to :%d
		oifname lo return
		meta l4proto tcp redirect to :%d
	}
}`, family, sidecarUID, sidecarDNS, sidecarPort))
	}
}

// istioRules are written by istio-iptables, as by the init container of a pod.
func istioRules(flags ...string) func(t *testing.T, pod *lab.Namespace) {
	return func(t *testing.T, pod *lab.Namespace) {
		t.Helper()
		lab.Need(t, "iptables-nft", "iptables-legacy", "nft")
		dir, err := programs.Istio.Build(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		run(t, pod, filepath.Join(dir, "istio-iptables"), append([]string{
			"--envoy-port", fmt.Sprint(sidecarPort), "--inbound-capture-port", "15006", "--proxy-uid", fmt.Sprint(sidecarUID), "--proxy-gid", fmt.Sprint(sidecarUID),
			"--istio-inbound-interception-mode", "REDIRECT", "--istio-service-cidr", "*", "--istio-inbound-ports", "", "--dual-stack", "--redirect-dns", "--capture-all-dns",
		}, flags...)...)
	}
}

// ambientRules are those that Istio's CNI agent makes in a pod of ambient mode, but for what catches connections to
// the pod. ztunnel, which listens in the pod, marks its sockets; here a rule marks what is sent by its user.
func ambientRules(t *testing.T, pod *lab.Namespace) {
	t.Helper()
	lab.Need(t, "iptables-nft")
	for _, f := range []struct{ restore, loopback, probe string }{
		{"iptables-nft-restore", "127.0.0.1/32", "169.254.7.127"},
		{"ip6tables-nft-restore", "::1/128", "fd16:9254:7127:1337:ffff:ffff:ffff:ffff"},
	} {
		run(t, pod, "sh", "-euc", fmt.Sprintf(`%s -w <<'EOF'
*raw
:ISTIO_OUTPUT - [0:0]
:ISTIO_PRERT - [0:0]
-A OUTPUT -m owner --uid-owner %d -j MARK --set-mark 0x539
-A PREROUTING -j ISTIO_PRERT
-A OUTPUT -j ISTIO_OUTPUT
-A ISTIO_OUTPUT -p udp -m mark --mark 0x539/0xfff -m udp --dport 53 -j CT --zone 1
-A ISTIO_PRERT -p udp -m mark ! --mark 0x539/0xfff -m udp --sport 53 -j CT --zone 1
COMMIT
*mangle
:ISTIO_OUTPUT - [0:0]
:ISTIO_PRERT - [0:0]
-A PREROUTING -j ISTIO_PRERT
-A OUTPUT -j ISTIO_OUTPUT
-A ISTIO_PRERT -m mark --mark 0x539/0xfff -j CONNMARK --set-xmark 0x111/0xfff
-A ISTIO_OUTPUT -m connmark --mark 0x111/0xfff -j CONNMARK --restore-mark --nfmask 0xffffffff --ctmask 0xffffffff
COMMIT
*nat
:ISTIO_OUTPUT - [0:0]
-A OUTPUT -j ISTIO_OUTPUT
-A ISTIO_OUTPUT -d %s -p tcp -m tcp -j ACCEPT
-A ISTIO_OUTPUT ! -o lo -p udp -m mark ! --mark 0x539/0xfff -m udp --dport 53 -j REDIRECT --to-ports %d
-A ISTIO_OUTPUT ! -d %s -p tcp -m tcp --dport 53 -m mark ! --mark 0x539/0xfff -j REDIRECT --to-ports %[4]d
-A ISTIO_OUTPUT -p tcp -m mark --mark 0x111/0xfff -j ACCEPT
-A ISTIO_OUTPUT ! -d %[5]s -o lo -j ACCEPT
-A ISTIO_OUTPUT ! -d %[5]s -p tcp -m mark ! --mark 0x539/0xfff -j REDIRECT --to-ports %[6]d
COMMIT
EOF`, f.restore, sidecarUID, f.probe, sidecarDNS, f.loopback, sidecarPort))
	}
}

// linkerdRules are written by proxy-init, as by the init container of a pod.
func linkerdRules(t *testing.T, pod *lab.Namespace) {
	t.Helper()
	lab.Need(t, "iptables")
	dir, err := programs.Linkerd.Build(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	run(t, pod, filepath.Join(dir, "proxy-init"), "--incoming-proxy-port", "4143", "--outgoing-proxy-port", fmt.Sprint(sidecarPort),
		"--proxy-uid", fmt.Sprint(sidecarUID), "--inbound-ports-to-ignore", "1-65535")
}

var meshes = []sidecarRules{
	{name: "plain", rules: plainRules, dns: true},
	{name: "istio-iptables", rules: istioRules(), dns: true, variant: true},
	{name: "istio-iptables legacy", rules: istioRules("--force-iptables-binary", "legacy"), dns: true, variant: true},
	{name: "istio-iptables nftables", rules: istioRules("--native-nftables"), dns: true, variant: true},
	{name: "ambient", rules: ambientRules, dns: true, variant: true},
	{name: "linkerd", rules: linkerdRules, ipv4: true, variant: true},
}

// networks returns those for which the mesh has rules.
func (m *sidecarRules) networks() []string {
	if m.ipv4 {
		return []string{"tcp4", "udp4"}
	}
	return networks
}

// meshServices are a Service of each kind of endpoint, and a name server.
func (c *cluster) meshServices() []string {
	var manifests []string
	for i, e := range meshEndpoints {
		manifests = append(manifests, c.service(i+1, fmt.Sprintf("web-%d", i+1), "", []endpoint{e})...)
	}
	addr := clusterIP(dnsService)
	manifests = append(manifests, lab.Service("dns", fmt.Sprintf("{clusterIPs: [%q, %q], ports: [{name: u, port: 53, protocol: UDP}, {name: t, port: 53}]}", addr[0], addr[1])))
	for family := range 2 {
		manifests = append(manifests, c.slice("dns", family, []endpoint{remote}))
	}
	return manifests
}

const dnsService = 9

var meshEndpoints = []endpoint{remote, local, otherLocal, {node: 1, place: "host"}}

// TestMesh: of a pod whose rules catch its connections, the sidecar sees the Service; what the
// sidecar sends, and what is not caught, is load-balanced as packets. All others are served at the
// socket.
func TestMesh(t *testing.T) {
	t.Parallel()
	for _, m := range meshes {
		for _, at := range []endpoint{local, otherLocal} {
			t.Run(m.name+" "+at.place, func(t *testing.T) {
				t.Parallel()
				tier.Variant(t, at == local && !m.variant)
				c, a := serveCluster(t, (*cluster).meshServices, "--socket-lb", "auto", "-v", "2")
				s := serveSidecar(t, c.podOf(at))
				c.checkPlain(t, s.pod) // without rules
				m.rules(t, s.pod)
				c.awaitMesh(t, s)
				c.explainMesh(t, at)
				c.checkMesh(t, s, &m, at)
				other := local
				if at == local {
					other = otherLocal
				}
				c.checkPlain(t, c.podOf(other), c.nodes[0].Namespace)

				a.Signal(unix.SIGKILL)
				_ = a.Wait()
				c.checkMesh(t, s, &m, at) // without an agent
				a.start()
				c.checkMesh(t, s, &m, at)
				if at == local {
					c.endMesh(t, s)
				}
			})
		}
	}
}

// awaitMesh waits until the sidecar sees Services.
func (c *cluster) awaitMesh(t *testing.T, s *sidecar) {
	t.Helper()
	lab.Eventually(t, "the sidecar sees Services", func() bool {
		to := netip.AddrPortFrom(clusterIP(1).of("tcp4"), 80)
		if _, err := ask(s.pod, "tcp4", to, "x"); err != nil {
			t.Errorf("before the agent has seen the rules: %v", err)
			return true
		}
		return s.last() == to
	})
}

// explainMesh: the pod's packets are explained at its own device, be it a port of a bridge.
func (c *cluster) explainMesh(t *testing.T, at endpoint) {
	t.Helper()
	addr := c.addrsOf(at)[0]
	to := netip.AddrPortFrom(clusterIP(1).of("tcp4"), 80).String()
	said := beeline(t, c.nodes[0], "explain", "--from", addr.String(), to)
	for _, want := range []string{"served by", "a process of a pod of this node", "its packets are served at veth"} {
		if !strings.Contains(said, want) {
			t.Errorf("explain --from %s %s does not say %q:\n%s", addr, to, want, said)
		}
	}
}

// checkMesh connects as an application of the pod, and as its sidecar.
func (c *cluster) checkMesh(t *testing.T, s *sidecar, m *sidecarRules, at endpoint) {
	t.Helper()
	for i, e := range meshEndpoints {
		for _, network := range m.networks() {
			to := netip.AddrPortFrom(clusterIP(i+1).of(network), 80)
			payload := fmt.Sprintf("%s to %d", network, i)
			capture := s.pod.Capture()
			got, err := ask(s.pod, network, to, payload)
			if err != nil || got.name != e.server() {
				t.Errorf("%s to %s: %v, %v", network, e.server(), got, err)
			}
			if network[:3] == "tcp" {
				if saw := s.last(); saw != to {
					t.Errorf("%s to %s: the sidecar saw %s, want %s", network, e.server(), saw, to)
				}
			}
			if !capture.Saw(to.Addr(), payload) {
				t.Errorf("%s to %s: no packet with the Service's address", network, e.server())
			}
			var own answer
			if err := s.as(func() (err error) {
				own, err = askHere(network, to, payload)
				return err
			}); err != nil || own.name != e.server() {
				t.Errorf("%s of the sidecar to %s: %v, %v", network, e.server(), own, err)
			}
			if saw := s.last(); saw.IsValid() {
				t.Errorf("%s of the sidecar to %s was caught on its way to %s", network, e.server(), saw)
			}
		}
	}
	if m.dns {
		c.checkMeshDNS(t, s)
	}
}

// checkMeshDNS: the sidecar answers an application in the name server's place, and asks it itself.
func (c *cluster) checkMeshDNS(t *testing.T, s *sidecar) {
	t.Helper()
	for _, network := range networks[2:] {
		to := netip.AddrPortFrom(clusterIP(dnsService).of(network), 53)
		got, err := ask(s.pod, network, to, "query")
		if err != nil || got.name != "sidecar" {
			t.Errorf("%s to the name server: %v, %v, want the sidecar", network, got, err)
		}
		unconnected := s.pod.Socket(network)
		if err := unconnected.SendTo("query", to); err != nil {
			t.Error(err)
		}
		text, from, err := unconnected.Receive()
		if err != nil || !strings.HasPrefix(text, "sidecar ") || from != to {
			t.Errorf("%s to the name server: %q from %s, %v", network, text, from, err)
		}
		if err := s.as(func() (err error) {
			got, err = askHere(network, to, "query")
			return err
		}); err != nil || got.name != remote.server() {
			t.Errorf("%s of the sidecar to the name server: %v, %v", network, got, err)
		}
	}
}

// checkPlain: sockets of these are served, so that no packet has the Service's address.
func (c *cluster) checkPlain(t *testing.T, from ...*lab.Namespace) {
	t.Helper()
	for _, n := range from {
		for i, e := range meshEndpoints {
			for _, network := range networks {
				to := netip.AddrPortFrom(clusterIP(i+1).of(network), 80)
				capture, payload := n.Capture(), fmt.Sprintf("plain %s to %d", network, i)
				s, hello := connect(t, n, network, to)
				if hello.name != e.server() {
					t.Errorf("%s reached %s, want %s", network, hello.name, e.server())
				}
				if peer, err := s.Peer(); err != nil || peer != to {
					t.Errorf("%s: the peer is %s, %v, want %s", network, peer, err, to)
				}
				if err := s.Send(payload); err != nil {
					t.Error(err)
				}
				if _, _, err := s.Receive(); err != nil {
					t.Error(err)
				}
				if capture.Saw(to.Addr(), payload) {
					t.Errorf("%s to %s: a packet with the Service's address", network, e.server())
				}
				s.Close()
			}
		}
	}
}

// endMesh: without its rules, the pod's sockets are served at once; without its device, the agent
// forgets it.
func (c *cluster) endMesh(t *testing.T, s *sidecar) {
	t.Helper()
	run(t, s.pod, "nft", "flush ruleset")
	n := c.nodes[0]
	err := n.Run(func() error {
		l, err := netlink.LinkByName("vethrouted")
		if err == nil {
			err = netlink.LinkDel(l)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	lab.Eventually(t, "the agent forgets the pod", func() bool { return len(natOf(t, n)) == 0 })
}

// TestMeshWithoutDevice: where no device leads to a network namespace whose rules catch its
// connections, its sockets are served like others, and people are told.
func TestMeshWithoutDevice(t *testing.T) {
	t.Parallel()
	c, a := serveCluster(t, (*cluster).meshServices, "--socket-lb", "auto")
	n := c.nodes[0]
	pod := n.NewBarePod()
	pod.Populate()
	c.router.AddDevice("vethodd", pod, "eth0") // not the node's
	addAddrs(pod, "eth0", parseAddrs("10.3.0.2", "fd03::2"))
	pod.AddDefaultRoute("10.3.0.1")
	plainRules(t, pod)
	to := netip.AddrPortFrom(clusterIP(1).of("udp4"), 80)
	for _, known := range []bool{false, true} {
		capture, payload := pod.Capture(), fmt.Sprintf("known: %t", known)
		s := pod.Socket("udp4")
		if err := s.Connect(to); err != nil {
			t.Fatal(err)
		}
		if peer, err := s.Peer(); err != nil || peer != to {
			t.Errorf("the peer is %s, %v, want %s", peer, err, to)
		}
		if local, err := s.Local(); err != nil || local.Addr() != netip.MustParseAddr("10.3.0.2") {
			t.Errorf("the socket is at %s, %v", local, err)
		}
		_ = s.Send(payload) // nobody answers for the gateway
		if capture.Saw(to.Addr(), payload) {
			t.Errorf("%s: a packet with the Service's address", payload)
		}
		lab.Eventually(t, "the agent has seen the rules", func() bool { return len(natOf(t, n)) == 1 })
	}
	if list := natOf(t, n); len(list[pod.Cookie()]) != 0 {
		t.Errorf("the network namespace is known by %v", list)
	}
	const text = "no veth or netkit device leads to it"
	lab.Eventually(t, fmt.Sprintf("the agent's log says %q with the pod's address", text), func() bool {
		return strings.Contains(a.Output(), text) && strings.Contains(a.Output(), "10.3.0.2")
	})
	var problems []datapath.Problem
	err := n.Run(func() (err error) {
		problems, err = datapath.Problems(n.BPFFS, pinnedMaps(t, n), datapath.Options{
			BPFFS: n.BPFFS, Cgroup: n.Cgroup, Devices: []string{datapath.DevicesAuto}, LeaveNAT: true,
		})
		return err
	})
	if err != nil || !slices.ContainsFunc(problems, func(p datapath.Problem) bool { return p.Kind == "nat-unserved" }) {
		t.Errorf("the problems are %v, %v", problems, err)
	}
}

// pinnedMaps returns the maps of a node's agent, until the test ends.
func pinnedMaps(t *testing.T, n *node) *bpfmap.Maps {
	maps, err := bpfmap.Open(datapath.Dir(n.BPFFS))
	if err != nil {
		t.Error(err)
		return nil
	}
	t.Cleanup(func() { maps.Close() })
	return maps
}

// natOf returns the network namespaces with rules of their own that the node's agent knows.
func natOf(t *testing.T, n *node) map[uint64][]int {
	t.Helper()
	return withMaps(t, n, func(maps *bpfmap.Maps) map[uint64][]int {
		list, err := devicemap.New(maps).NAT()
		if err != nil {
			t.Error(err)
		}
		return list
	})
}

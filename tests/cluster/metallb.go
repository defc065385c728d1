package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/tests/programs"
)

// metalLBTask is its name.
const metalLBTask = "metallb"

// metalLBRanges are addresses of the nodes' network that no device has.
var metalLBRanges = []string{"198.18.0.200-198.18.0.219", "fd98:18::200-fd98:18::21f"}

// metalLBImages finds the images in MetalLB's manifest.
var metalLBImages = regexp.MustCompile(`image: (quay\.io/metallb/(controller|speaker):\S+)`)

// buildMetalLB adds an archive with the images that MetalLB's own manifest names, and the
// manifest, which is applied as it is.
func buildMetalLB(ctx context.Context, cache string, s *settings) error {
	sources, err := programs.MetalLB.Sources(ctx, "go.universe.tf/metallb")
	if err != nil {
		return err
	}
	s.MetalLB = filepath.Join(sources, "config", "manifests", "metallb-native.yaml")
	manifest, err := os.ReadFile(s.MetalLB)
	if err != nil {
		return err
	}
	var recipes []recipe
	for _, image := range metalLBImages.FindAllStringSubmatch(string(manifest), -1) {
		tag, program := image[1], image[2]
		recipes = append(recipes, recipe{
			tags:       []string{tag},
			files:      map[string]string{program: filepath.Join(s.Programs.MetalLB, program)},
			entrypoint: []string{"/" + program},
		})
	}
	archive, err := archiveImages(cache, "metallb", s.Rootfs, recipes)
	s.Images = append(s.Images, archive)
	return err
}

// metalLBRun is a cluster whose load balancers MetalLB announces.
type metalLBRun struct {
	*cluster
	announcements *announcements
	traffic       traffic
	services      map[string]*balanced
}

// balanced is a Service of type LoadBalancer with an address of each family.
type balanced struct {
	name string
	addr []netip.Addr
}

func (s *balanced) has(addr netip.Addr) bool { return slices.Contains(s.addr, addr) }

// The Services of metallb-web.yaml, by their externalTrafficPolicy.
const (
	clusterService = "cluster"
	localService   = "local"
)

// metalLB has MetalLB assign addresses to Services and announce them in L2 mode, to a client
// in the nodes' network that asks for them by ARP and NDP: from one node, until the endpoints
// of a Service with the policy Local leave that node, or the node ends.
func metalLB(ctx context.Context, c *cluster) error {
	m := &metalLBRun{cluster: c, traffic: traffic{cluster: c}, services: make(map[string]*balanced)}
	for _, step := range []func(context.Context) error{
		m.install, m.unannounced, m.announce, m.serve, m.startClients, m.moveEndpoints, m.failNode,
	} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// install installs MetalLB as its manifest says and starts the servers.
func (m *metalLBRun) install(ctx context.Context) (err error) {
	if m.announcements, err = hearAnnouncements(ctx); err != nil {
		return err
	}
	if _, err := m.kubectl(ctx, "apply", "--server-side", "--filename="+m.MetalLB); err != nil {
		return err
	}
	for _, object := range []string{"deployment/controller", "daemonset/speaker"} {
		if err := m.rolledOutIn(ctx, "metallb-system", object); err != nil {
			return err
		}
	}
	if err := m.apply(ctx, "metallb-web.yaml"); err != nil {
		return err
	}
	if err := m.rolledOutIn(ctx, "default", "daemonset/web"); err != nil {
		return err
	}
	m.say("MetalLB runs")
	return nil
}

// applyWhenServed applies a manifest once MetalLB's webhook answers.
func (m *metalLBRun) applyWhenServed(ctx context.Context, manifest string, data map[string]any) error {
	return m.await(ctx, manifest+" is applied", func() error { return m.applyWith(ctx, manifest, data) })
}

// unannounced has addresses assigned, for which nobody answers before MetalLB is to announce
// them: the proxy does not, whatever the nodes' settings of ARP.
func (m *metalLBRun) unannounced(ctx context.Context) error {
	if err := m.applyWhenServed(ctx, "metallb-pool.yaml", map[string]any{"Ranges": metalLBRanges}); err != nil {
		return err
	}
	for _, name := range []string{clusterService, localService} {
		_, outside, err := m.serviceAddresses(ctx, name)
		if err != nil {
			return err
		}
		s := &balanced{name: name}
		for _, target := range outside[:2] {
			s.addr = append(s.addr, targetAddr(target).Addr())
		}
		m.services[name] = s
		m.say("Service %s has the addresses %v", name, s.addr)
	}
	for _, s := range m.services {
		for _, addr := range s.addr {
			if _, err := askOnce("http", addr); !errors.Is(err, unix.EHOSTUNREACH) {
				return fmt.Errorf("%s, which nobody is to announce: %v, want no route to host", addr, err)
			}
			if heard := m.announcements.since(addr); len(heard) > 0 {
				return fmt.Errorf("%s is announced by %v before MetalLB is to", addr, heard)
			}
		}
	}
	for _, n := range m.nodes {
		if err := inNetworkOf(n.pid(), m.noSettings); err != nil {
			return fmt.Errorf("%s: %w", nodeName(n.index), err)
		}
	}
	m.say("nobody answers for them, and no device has them")
	return nil
}

// noSettings fails when the calling thread's network namespace has a device with the address
// of a Service, or settings of ARP that differ from the kernel's.
func (m *metalLBRun) noSettings() error {
	have, err := netlink.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return err
	}
	for _, s := range m.services {
		for _, addr := range s.addr {
			if slices.ContainsFunc(have, func(a netlink.Addr) bool { return a.IP.Equal(addr.AsSlice()) }) {
				err = errors.Join(err, fmt.Errorf("a device has %s", addr))
			}
		}
	}
	for _, name := range []string{"arp_ignore", "arp_announce"} {
		value, failed := os.ReadFile("/proc/sys/net/ipv4/conf/all/" + name)
		if failed == nil && strings.TrimSpace(string(value)) != "0" {
			failed = fmt.Errorf("%s is %s", name, value)
		}
		err = errors.Join(err, failed)
	}
	return err
}

// announce has all addresses announced: both of a Service by one node.
func (m *metalLBRun) announce(ctx context.Context) error {
	if err := m.applyWhenServed(ctx, "metallb-advertisement.yaml", nil); err != nil {
		return err
	}
	for _, name := range []string{clusterService, localService} {
		i, err := m.announcedBy(ctx, m.services[name], func(int) bool { return true })
		if err != nil {
			return err
		}
		m.say("%s announces %s, and no other node does", nodeName(i), name)
	}
	return nil
}

// resolveRounds is how often the router asks for an address before it is sure that one node
// alone answers: an answer to one question that comes late is heard by the next.
const resolveRounds = 5

// announcedBy waits until a node of that kind announces all addresses of a Service, and no
// other one does any more, and returns it.
func (m *metalLBRun) announcedBy(ctx context.Context, s *balanced, wanted func(i int) bool) (node int, err error) {
	err = m.await(ctx, s.name+" is announced by one node", func() (err error) {
		if node, err = m.resolve(s); err != nil {
			return err
		}
		if !wanted(node) {
			return fmt.Errorf("%s announces it", nodeName(node))
		}
		return m.alone(s, node)
	})
	return node, err
}

// alone fails unless one node is heard to announce the addresses of a Service.
func (m *metalLBRun) alone(s *balanced, node int) error {
	for _, addr := range s.addr {
		m.announcements.since(addr)
	}
	for range resolveRounds {
		if _, err := m.resolve(s); err != nil {
			return err
		}
	}
	for _, addr := range s.addr {
		if heard := m.announcements.since(addr); !slices.Equal(heard, []string{fabricMAC(node).String()}) {
			return fmt.Errorf("%s is announced by %v, want %s alone", addr, heard, fabricMAC(node))
		}
	}
	return nil
}

// resolve returns the node whose MAC address the router gets for all addresses of a Service.
func (m *metalLBRun) resolve(s *balanced) (node int, err error) {
	for _, addr := range s.addr {
		if err := forgetNeighbor(addr); err != nil {
			return 0, err
		}
		if conn, err := dialService("tcp", addr); err == nil {
			conn.Close()
		}
		i, err := m.neighborNode(addr)
		if err != nil {
			return 0, err
		}
		if i == 0 || node != 0 && i != node {
			return 0, fmt.Errorf("of %v, %s has the MAC address of %s", s.addr, addr, nodeName(i))
		}
		node = i
	}
	return node, nil
}

// reply is what a server says, see the program load.
type reply struct{ Host, Client string }

// protocols are those of the Services: HTTP over TCP, and UDP.
var protocols = []string{"http", "udp"}

func dialService(network string, addr netip.Addr) (net.Conn, error) {
	return net.DialTimeout(network, netip.AddrPortFrom(addr, 80).String(), slowProber.Timeout)
}

// askOnce asks a Service by one connection or datagram.
func askOnce(protocol string, addr netip.Addr) (got reply, err error) {
	if protocol == "udp" {
		return askDatagram(addr)
	}
	resp, err := slowProber.Get(url(addr.String(), 80))
	if err != nil {
		return got, err
	}
	defer resp.Body.Close()
	return got, json.NewDecoder(resp.Body).Decode(&got)
}

// slowProber waits as long as the kernel takes to find that nobody has an address.
var slowProber = http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}

func askDatagram(addr netip.Addr) (got reply, err error) {
	conn, err := dialService("udp", addr)
	if err != nil {
		return got, err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(slowProber.Timeout)); err != nil {
		return got, err
	}
	if _, err := conn.Write([]byte("1")); err != nil {
		return got, err
	}
	buf := make([]byte, 512)
	n, err := conn.Read(buf)
	if err != nil {
		return got, err
	}
	return got, json.Unmarshal(buf[:n], &got)
}

// asked is how often each address is asked by each protocol: two servers at random are both
// found but once in half a million times.
const asked = 20

// ask asks a Service in every way and returns the servers that answered, and the clients
// that they saw.
func (s *balanced) ask() (hosts, clients []string, err error) {
	for _, addr := range s.addr {
		for _, protocol := range protocols {
			for range asked {
				got, err := askOnce(protocol, addr)
				if err != nil {
					return nil, nil, fmt.Errorf("ask %s of %s by %s: %w", addr, s.name, protocol, err)
				}
				hosts, clients = append(hosts, got.Host), append(clients, got.Client)
			}
		}
	}
	slices.Sort(hosts)
	slices.Sort(clients)
	return slices.Compact(hosts), slices.Compact(clients), nil
}

// serve asks both Services: the pods of all nodes answer for the one, and those of the node
// that announces it for the other, and see the client.
func (m *metalLBRun) serve(ctx context.Context) error {
	hosts, _, err := m.services[clusterService].ask()
	if err != nil {
		return err
	}
	if len(hosts) != m.Nodes {
		return fmt.Errorf("of %s, %v answered, want one pod of each node", clusterService, hosts)
	}
	node, err := m.resolve(m.services[localService])
	if err != nil {
		return err
	}
	if err := m.checkLocal(ctx, node); err != nil {
		return err
	}
	m.say("TCP and UDP are served by IPv4 and IPv6, and with the policy Local pods see the client's address")
	return nil
}

// checkLocal fails unless the Service with the policy Local is served by the pod of the i-th
// node alone, which sees the client's address.
func (m *metalLBRun) checkLocal(ctx context.Context, i int) error {
	hosts, clients, err := m.services[localService].ask()
	if err != nil {
		return err
	}
	pod, err := m.webPod(ctx, i)
	if err != nil {
		return err
	}
	if !slices.Equal(hosts, []string{pod}) || !slices.Equal(clients, []string{routerAddr4, routerAddr6}) {
		return fmt.Errorf("of %s, %v answered clients %v, want %s of %s and the client's own addresses",
			localService, hosts, clients, pod, nodeName(i))
	}
	return nil
}

// webPod returns the name of the i-th node's server.
func (m *metalLBRun) webPod(ctx context.Context, i int) (string, error) {
	pods, err := m.podsOn(ctx, i)
	if err != nil {
		return "", err
	}
	for _, p := range pods {
		if p.Labels["app"] == "web" {
			return p.Name, nil
		}
	}
	return "", fmt.Errorf("%s has no server", nodeName(i))
}

// The clients: so many long connections, and short ones a second.
const (
	metalLBLong = 16
	metalLBRate = 40
)

// witnessSource is the client whose connections began when the endpoints had moved.
const witnessSource = "witness"

// startClients has a client outside ask both Services, also while they move.
func (m *metalLBRun) startClients(ctx context.Context) error {
	return m.startClient(ctx, outsideSource, clusterService, localService)
}

// startClient starts a client outside that asks Services, and waits for its long connections.
func (m *metalLBRun) startClient(ctx context.Context, name string, services ...string) error {
	var targets []string
	for _, service := range services {
		for _, addr := range m.services[service].addr {
			targets = append(targets, url(addr.String(), 80))
		}
	}
	err := m.traffic.startOutside(name, fmt.Sprintf("--long=%d", metalLBLong), fmt.Sprintf("--rate=%d", metalLBRate),
		"--targets="+strings.Join(targets, ","), "--short-targets="+strings.Join(byUDP(targets), ","))
	if err != nil {
		return err
	}
	return m.allLong(ctx)
}

// allLong waits until all long connections are made.
func (m *metalLBRun) allLong(ctx context.Context) error {
	return m.awaitOpen(ctx, &m.traffic, metalLBLong*len(m.traffic.sources))
}

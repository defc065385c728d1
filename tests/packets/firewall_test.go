package packets_test

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/tests/apiserver"
	"github.com/beeline-lb/beeline/tests/lab"
)

// firewall is what an administrator runs on a node, set up to let pods reach each other, as networks of pods ask for.
type firewall struct {
	name  string
	needs []string
	// start has it run. It returns the step of docs/migration.md, if there is one, and what makes its rules anew.
	start func(t *testing.T, n *node) (open, again func())
	// chain says that the agent opens it by BEELINE-FORWARD; else it rejects until it is opened.
	chain bool
}

// Of these, make setup installs what a machine may have without being changed by it at its next boot.
var firewalls = []firewall{
	{"nftables", []string{"nft"}, startNFTables, false},
	{"firewalld", []string{"firewalld", "firewall-cmd", "dbus-daemon"}, startFirewalld, false},
	{"ufw", []string{"ufw", "iptables-nft"}, startUFW, true},
	{"dockerd", []string{"dockerd", "iptables-nft"}, startDocker, true},
	{"Docker's rules", []string{"iptables-nft", "iptables-legacy"}, layDockerRules, true},
}

// firewallEndpoints are those of one Service each.
var firewallEndpoints = []endpoint{local, otherLocal, remote, {node: 2, place: "host"}, {node: 1, place: "host"}}

// podEndpoints is how many of firewallEndpoints are pods.
const podEndpoints = 3

// TestFirewalls: clients outside, pods and the node reach endpoints of every kind through the firewalls of
// docs/migration.md, once they are opened as it says, also when they have made their rules anew.
// beeline verify finds those that stop clients, and no others.
func TestFirewalls(t *testing.T) {
	t.Parallel()
	server := apiserver.Start(t, "--service-cluster-ip-range=10.96.0.0/16,fd96::/112")
	c := &cluster{nodes: []*node{{index: 1}, {index: 2}}}
	var services []string
	for i, at := range firewallEndpoints {
		services = append(services, c.service(i+1, fmt.Sprintf("public-%d", i+1), "ipFamilyPolicy: RequireDualStack,", []endpoint{at})...)
	}
	publish(t, server, services)
	for _, f := range firewalls {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			for _, program := range f.needs {
				if _, err := exec.LookPath(program); err != nil {
					t.Skipf("install %s by hand, where it may be enabled at boot: %v", f.name, err)
				}
			}
			f.test(t, server)
		})
	}
}

func (f *firewall) test(t *testing.T, server *apiserver.Server) {
	c := newCluster(t, false)
	c.serveAll(t)
	n := c.nodes[0]
	open, again := f.start(t, n)
	n.Relay(strings.TrimPrefix(server.Config.Host, "https://"))
	startClusterAgent(t, server, n, podFlags...)
	if f.chain {
		f.awaitChain(t, n)
	} else {
		for i, e := range firewallEndpoints {
			for _, network := range networks {
				got, err := ask(c.client, network, nodePort(network, i+1), "x")
				if rejected := err == unix.EHOSTUNREACH || err == unix.EACCES; rejected != (e.node == 1) {
					t.Errorf("%s from outside to %s before the firewall is opened: %v, %v", network, e.server(), got, err)
				}
			}
		}
	}
	const finding = "machine: firewall"
	if said := beeline(t, n, "verify"); strings.Contains(said, finding) == f.chain {
		t.Errorf("before the firewall is opened, beeline verify says:\n%s", said)
	}
	if open != nil {
		open()
	}
	c.passFirewall(t, "opened")
	again()
	if f.chain {
		f.awaitChain(t, n)
	}
	c.passFirewall(t, "made anew")
	if said := beeline(t, n, "verify"); strings.Contains(said, finding) {
		t.Errorf("once the firewall is opened, beeline verify says:\n%s", said)
	}
}

// awaitChain waits until FORWARD of both families leads to BEELINE-FORWARD, once.
func (f *firewall) awaitChain(t *testing.T, n *node) {
	t.Helper()
	lab.Eventually(t, "FORWARD leads to BEELINE-FORWARD once", func() bool {
		for _, program := range []string{"iptables-nft", "ip6tables-nft"} {
			out, err := n.Output(program, "-S", "FORWARD")
			if err != nil || strings.Count(out, "-j BEELINE-FORWARD") != 1 {
				return false
			}
		}
		return true
	})
}

// passFirewall asks all Services from outside and from the node, and those of pods from one of their pods.
func (c *cluster) passFirewall(t *testing.T, when string) {
	t.Helper()
	for i, e := range firewallEndpoints {
		for _, network := range networks {
			cluster := netip.AddrPortFrom(clusterIP(i+1).of(network), 80)
			for _, from := range []struct {
				name string
				n    *lab.Namespace
				to   netip.AddrPort
			}{{"outside", c.client, nodePort(network, i+1)}, {"the node", c.nodes[0].Namespace, cluster}, {"a pod", c.podOf(local), cluster}} {
				if from.name == "a pod" && i >= podEndpoints {
					continue
				}
				got, err := ask(from.n, network, from.to, "x")
				if err != nil || got.name != e.server() {
					t.Errorf("%s from %s to %s, with the firewall %s: reached %v, error %v", network, from.name, e.server(), when, got, err)
				}
			}
		}
	}
}

// shell runs a script on a node.
func (n *node) shell(t *testing.T, script string) {
	t.Helper()
	run(t, n.Namespace, "sh", "-euc", script)
}

// startNFTables makes a firewall by nft alone, which rejects what it does not know.
func startNFTables(t *testing.T, n *node) (open, again func()) {
	t.Helper()
	const rules = `nft -f - <<'EOF'
table inet filter
flush table inet filter
table inet filter {
	chain input {
		type filter hook input priority filter; policy drop;
		ct state vmap { established : accept, related : accept, invalid : drop }
		iifname "lo" accept
		meta l4proto { icmp, ipv6-icmp } accept
		tcp dport 22 accept
		%[1]s reject with icmpx admin-prohibited
	}
	chain forward {
		type filter hook forward priority filter; policy drop;
		ct state established,related accept
		ip saddr 10.244.0.0/16 ip daddr 10.244.0.0/16 accept
		ip6 saddr fd44::/48 ip6 daddr fd44::/48 accept
		%[1]s reject with icmpx admin-prohibited
	}
}
EOF`
	n.shell(t, fmt.Sprintf(rules, ""))
	open = func() {
		n.shell(t, `for chain in input forward; do nft insert rule inet filter $chain meta mark and 0x1000 == 0x1000 accept; done`)
	}
	return open, func() { n.shell(t, fmt.Sprintf(rules, "meta mark and 0x1000 == 0x1000 accept\n")) }
}

// startFirewalld runs firewalld with a D-Bus of its own, and the defaults of its package.
func startFirewalld(t *testing.T, n *node) (open, again func()) {
	t.Helper()
	dir := t.TempDir()
	socket, config := filepath.Join(dir, "bus"), filepath.Join(dir, "bus.conf")
	policy := `<allow user="*"/><allow own="*"/>`
	for _, kind := range []string{"method_call", "method_return", "signal", "error"} {
		policy += fmt.Sprintf(`<allow send_type=%q/><allow receive_type=%[1]q/>`, kind)
	}
	err := os.WriteFile(config, []byte(`<busconfig><type>system</type><listen>unix:path=`+socket+`</listen><auth>EXTERNAL</auth>`+
		`<policy context="default">`+policy+`</policy></busconfig>`), 0o600)
	if err != nil {
		t.Fatal(err)
	}
	n.Start("dbus-daemon", "--nofork", "--config-file", config)
	lab.Eventually(t, "D-Bus listens", func() bool { _, err := os.Stat(socket); return err == nil })
	bus := "DBUS_SYSTEM_BUS_ADDRESS=unix:path=" + socket
	p := n.Start("env", bus, "firewalld", "--nofork", "--nopid", "--system-config", t.TempDir(), "--log-target", "console")
	lab.Eventually(t, "firewalld runs", func() bool {
		_, err := n.Output("env", bus, "firewall-cmd", "--state")
		return err == nil || p.Ended()
	})
	change := func(commands ...string) {
		t.Helper()
		for _, c := range commands {
			if out, err := n.Output("env", append([]string{bus, "firewall-cmd"}, strings.Fields(c)...)...); err != nil {
				t.Fatalf("firewall-cmd %s: %s %v", c, out, failure(err))
			}
		}
	}
	change("--permanent --zone=trusted --add-source=10.244.0.0/16 --add-source=fd44::/48", "--reload")
	open = func() {
		change("--permanent --new-policy=services",
			"--permanent --policy=services --add-ingress-zone=ANY",
			"--permanent --policy=services --add-egress-zone=trusted",
			"--permanent --policy=services --set-target=ACCEPT",
			fmt.Sprintf("--permanent --add-port=%d/tcp --add-port=%[1]d/udp", backendPort),
			"--reload")
	}
	return open, func() { change("--reload") }
}

// startUFW enables ufw with files of its own, and its package's defaults.
func startUFW(t *testing.T, n *node) (open, again func()) {
	t.Helper()
	dir := t.TempDir()
	if out, err := exec.Command("sh", "-euc", "cp -r /etc/ufw "+dir+"/etc; cp /etc/default/ufw "+dir+"/default").CombinedOutput(); err != nil {
		t.Skipf("ufw has no files here: %s %v", out, err)
	}
	mounts := fmt.Sprintf("mount --bind %s/etc /etc/ufw; mount --bind %[1]s/default /etc/default/ufw; PATH=%s:$PATH; export PATH;", dir, lab.IPTables(t, "nft"))
	ufw := func(commands ...string) {
		t.Helper()
		for _, c := range commands {
			if out, err := n.Output("unshare", "-m", "sh", "-euc", mounts+" ufw "+c); err != nil {
				t.Fatalf("ufw %s: %s %v", c, out, failure(err))
			}
		}
	}
	ufw("--force enable", "route allow from 10.244.0.0/16 to 10.244.0.0/16", "route allow from fd44::/48 to fd44::/48")
	return func() { ufw(fmt.Sprintf("allow %d", backendPort)) }, func() { ufw("reload", "disable", "--force enable") }
}

// startDocker runs dockerd.
func startDocker(t *testing.T, n *node) (open, again func()) {
	t.Helper()
	path := "PATH=" + lab.IPTables(t, "nft") + ":" + os.Getenv("PATH")
	end := func(p *lab.Process) {
		p.Signal(unix.SIGTERM)
		_ = p.Wait() // it removes its mounts
	}
	start := func() *lab.Process {
		dir := t.TempDir()
		p := n.Start("env", path, "dockerd", "--iptables", "--experimental", "--ip6tables",
			"--ipv6", "--fixed-cidr-v6=fd00:dd::/64", "--storage-driver=vfs",
			"--data-root="+dir+"/data", "--exec-root="+dir+"/exec", "--pidfile="+dir+"/pid", "--host=unix://"+dir+"/socket")
		lab.Eventually(t, "dockerd listens", func() bool { return p.Ended() || strings.Contains(p.Output(), "API listen on") })
		if p.Ended() {
			t.Skipf("dockerd does not run here: %v", p.Wait())
		}
		t.Cleanup(func() { end(p) })
		return p
	}
	// It drops what is forwarded where it is the first to have the node forward.
	n.SetSysctl("ipv4/ip_forward", "0")
	n.SetSysctl("ipv6/conf/all/forwarding", "0")
	p := start()
	forward(n.Namespace)
	letPods(t, n)
	return nil, func() {
		end(p)
		p = start()
	}
}

// letPods lets pods reach each other, as a network of pods does in FORWARD.
func letPods(t *testing.T, n *node) {
	t.Helper()
	n.shell(t, "iptables-nft -w -A FORWARD -s 10.244.0.0/16 -d 10.244.0.0/16 -j ACCEPT; ip6tables-nft -w -A FORWARD -s fd44::/48 -d fd44::/48 -j ACCEPT")
}

// layDockerRules makes FORWARD as Docker Engine 28 does, which inserts its chains before all others.
func layDockerRules(t *testing.T, n *node) (open, again func()) {
	t.Helper()
	n.shell(t, `for i in iptables-nft ip6tables-nft; do
		$i -w -P FORWARD DROP
		for c in DOCKER DOCKER-BRIDGE DOCKER-CT DOCKER-FORWARD DOCKER-USER; do $i -w -N $c; done
		$i -w -A DOCKER ! -i docker0 -o docker0 -j DROP
		$i -w -A DOCKER-BRIDGE -o docker0 -j DOCKER
		$i -w -A DOCKER-CT -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
		$i -w -A DOCKER-FORWARD -j DOCKER-CT
		$i -w -A DOCKER-FORWARD -j DOCKER-BRIDGE
		$i -w -A DOCKER-FORWARD -i docker0 -j ACCEPT
		$i -w -I FORWARD -j DOCKER-FORWARD
		$i -w -I FORWARD -j DOCKER-USER
	done`)
	letPods(t, n)
	return nil, func() {
		n.shell(t, `for i in iptables-nft ip6tables-nft; do
			for c in DOCKER-FORWARD DOCKER-USER; do $i -w -D FORWARD -j $c; $i -w -I FORWARD -j $c; done
		done`)
	}
}

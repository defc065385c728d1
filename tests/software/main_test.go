// Package software_test lets programs that nobody wrote for Beeline talk to each
// other through Services. It needs root, and skips a test whose program is
// missing.
package software_test

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/beeline-lb/beeline/tests/lab"
)

func TestMain(m *testing.M) { os.Exit(lab.Main(m)) }

// family is one IP family's addresses.
type family struct {
	name    string
	vip     netip.Addr
	backend func(int) netip.Addr
}

var families = []family{
	{"IPv4", netip.MustParseAddr("10.96.0.1"), lab.Backend4},
	{"IPv6", netip.MustParseAddr("fd96::1"), lab.Backend6},
}

// perFamily runs a test for each family with a host whose agent serves port of
// the VIP in both protocols at the first count backends.
func perFamily(t *testing.T, port, target, count int, test func(*testing.T, *lab.Host, family)) {
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			h := lab.NewHost(t)
			var addrs []netip.Addr
			for i := range count {
				addrs = append(addrs, f.backend(i+1))
			}
			h.Serve(lab.AgentOptions{}).Apply(
				lab.Service("software", fmt.Sprintf("{clusterIPs: [%q], ports: [{name: t, port: %d}, {name: u, port: %d, protocol: UDP}]}", f.vip, port, port)),
				lab.Slice("software", fmt.Sprintf("t:%d/TCP,u:%d/UDP", target, target), addrs...))
			test(t, h, f)
		})
	}
}

// listening waits for a server of the host that accepts connections.
func listening(t *testing.T, h *lab.Host, p *lab.Process, at netip.AddrPort) {
	t.Helper()
	network := "tcp4"
	if at.Addr().Is6() {
		network = "tcp6"
	}
	lab.Eventually(t, "a server at "+at.String(), func() bool {
		s := h.Socket(network)
		defer s.Close()
		return p.Ended() || s.Connect(at) == nil
	})
	if p.Ended() {
		t.Fatalf("the server at %s has ended: %v", at, p.Wait())
	}
}

// run runs a program to its end and returns what it wrote.
func run(t *testing.T, n *lab.Namespace, name string, args ...string) string {
	t.Helper()
	out, err := n.Output(name, args...)
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return out
}

// TestHTTP: curl fetches from Python's web servers.
func TestHTTP(t *testing.T) {
	lab.Need(t, "curl", "python3")
	perFamily(t, 80, 8080, 3, func(t *testing.T, h *lab.Host, f family) {
		var servers []*lab.Process
		for i := range 3 {
			servers = append(servers, serveHTTP(t, h, f.backend(i+1), fmt.Sprintf("server %d", i+1)))
		}
		for i, p := range servers {
			listening(t, h, p, netip.AddrPortFrom(f.backend(i+1), 8080))
		}
		url := fmt.Sprintf("http://%s/name", netip.AddrPortFrom(f.vip, 80))
		seen := map[string]int{}
		for range 30 {
			seen[run(t, h.Namespace, "curl", "-sSf", url)]++
		}
		if len(seen) != 3 {
			t.Errorf("30 requests were answered by %v, want 3 servers", seen)
		}
		t.Run("remote address", func(t *testing.T) {
			out := run(t, h.Namespace, "curl", "-sSf", "-o", "/dev/null", "-w", "%{remote_ip} %{remote_port}", url)
			if want := fmt.Sprintf("%s 80", f.vip); out != want {
				t.Errorf("curl was connected to %q, want %q", out, want)
			}
		})
		t.Run("many on one connection", func(t *testing.T) {
			out := run(t, h.Namespace, "curl", "-sSf", "-w", " %{num_connects}\n", url, url, url)
			if lines := strings.Fields(out); len(lines) != 9 || lines[1] != lines[4] || lines[1] != lines[7] {
				t.Errorf("three requests: %q", out)
			}
		})
		t.Run("refused", func(t *testing.T) {
			out, err := h.Output("curl", "-sS", fmt.Sprintf("http://%s/", netip.AddrPortFrom(f.vip, 81)))
			if err == nil {
				t.Errorf("another port answers %q", out)
			}
		})
	})
}

// serveHTTP starts Python's web server over a folder with one file.
func serveHTTP(t *testing.T, h *lab.Host, addr netip.Addr, name string) *lab.Process {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "name"), []byte(name), 0o600); err != nil {
		t.Fatal(err)
	}
	return h.Start("python3", "-m", "http.server", "--protocol", "HTTP/1.1", "--bind", addr.String(), "--directory", dir, "8080")
}

// TestPythonClient: Python's own sockets, with the connection's peer as it sees
// it.
func TestPythonClient(t *testing.T) {
	lab.Need(t, "python3")
	const program = `
import socket, sys
host, port = sys.argv[1], int(sys.argv[2])
with socket.create_connection((host, port), 5) as s:
    print(s.getpeername()[:2])
kind = socket.AF_INET6 if ":" in host else socket.AF_INET
with socket.socket(kind, socket.SOCK_DGRAM) as s:
    s.settimeout(5)
    for _ in range(5): # a datagram may get lost
        s.sendto(b"who", (host, port))
        try:
            print(s.recvfrom(2048)[1][:2])
            break
        except socket.timeout:
            pass
`
	perFamily(t, 80, lab.BackendPort, 3, func(t *testing.T, h *lab.Host, f family) {
		h.ServeBackends()
		peer := fmt.Sprintf("('%s', 80)\n", f.vip)
		if out := run(t, h.Namespace, "python3", "-c", program, f.vip.String(), "80"); out != peer+peer {
			t.Errorf("Python sees %q, want %q twice", out, peer)
		}
	})
}

// TestDNS: dig asks dnsmasq over UDP and TCP. It does not take an answer that
// comes from another address than it asked.
func TestDNS(t *testing.T) {
	lab.Need(t, "dig", "dnsmasq")
	perFamily(t, 53, 5353, 2, func(t *testing.T, h *lab.Host, f family) {
		for i := range 2 {
			addr := f.backend(i + 1)
			p := h.Start("dnsmasq", "--keep-in-foreground", "--conf-file=/dev/null", "--no-resolv", "--no-hosts",
				"--user=root", "--pid-file=", "--bind-interfaces", "--except-interface=lo", "--port=5353", "--listen-address="+addr.String(),
				fmt.Sprintf("--txt-record=who.test,%d", i+1), "--address=/web.test/203.0.113.9")
			listening(t, h, p, netip.AddrPortFrom(addr, 5353))
		}
		server := "@" + f.vip.String()
		for _, transport := range []string{"+notcp", "+tcp"} {
			seen := map[string]int{}
			for range 24 {
				seen[run(t, h.Namespace, "dig", server, transport, "+short", "+tries=5", "+time=5", "who.test", "TXT")]++
			}
			if len(seen) != 2 || seen["\"1\"\n"] == 0 || seen["\"2\"\n"] == 0 {
				t.Errorf("dig %s: answers %v, want both servers", transport, seen)
			}
		}
		if out := run(t, h.Pod, "dig", server, "+short", "+tries=5", "+time=5", "web.test"); out != "203.0.113.9\n" {
			t.Errorf("dig in the pod: %q", out)
		}
	})
}

// TestRedis: a real client writes through one connection and reads the same
// through others.
func TestRedis(t *testing.T) {
	lab.Need(t, "redis-server", "redis-cli")
	perFamily(t, 6379, 7000, 1, func(t *testing.T, h *lab.Host, f family) {
		addr := f.backend(1)
		p := h.Start("redis-server", "--bind", addr.String(), "--port", "7000", "--save", "", "--appendonly", "no", "--protected-mode", "no")
		listening(t, h, p, netip.AddrPortFrom(addr, 7000))
		cli := func(args ...string) string {
			return strings.TrimSpace(run(t, h.Namespace, "redis-cli", append([]string{"-h", f.vip.String()}, args...)...))
		}
		if out := cli("set", "key", "value"); out != "OK" {
			t.Errorf("set: %q", out)
		}
		for range 10 {
			if out := cli("get", "key"); out != "value" {
				t.Errorf("get: %q", out)
			}
		}
		if out := cli("-r", "1000", "incr", "count"); !strings.HasSuffix(out, "\n1000") {
			t.Errorf("a thousand increments end with %q", out[max(0, len(out)-20):])
		}
	})
}

// TestIperf: a connection for control and one for data reach the same server, in
// TCP and UDP.
func TestIperf(t *testing.T) {
	lab.Need(t, "iperf3")
	perFamily(t, 5201, 5300, 1, func(t *testing.T, h *lab.Host, f family) {
		addr := f.backend(1)
		p := h.Start("iperf3", "--server", "--forceflush", "--bind", addr.String(), "--port", "5300")
		for i, args := range [][]string{{}, {"--reverse"}, {"--udp", "--bitrate", "10M"}} {
			// After a test the server turns clients away until it says so again.
			lab.Eventually(t, "iperf3 listens", func() bool { return strings.Count(p.Output(), "Server listening") > i })
			args = append(args, "--client", f.vip.String(), "--time", "1", "--json")
			out := run(t, h.Namespace, "iperf3", args...)
			if !strings.Contains(out, `"remote_host":	"`+f.vip.String()) || strings.Contains(out, `"error"`) {
				t.Errorf("iperf3 %s:\n%s", strings.Join(args, " "), out)
			}
		}
	})
}

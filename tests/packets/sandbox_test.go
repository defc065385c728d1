package packets_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/tests/lab"
	"github.com/beeline-lb/beeline/tests/programs"
	"github.com/beeline-lb/beeline/tests/tier"
)

const (
	// sandboxed is the argument that makes the test binary the one process of a sandbox.
	sandboxed = "sandboxed"
	// sandboxPort is where it is told what to do.
	sandboxPort = 9000
	// sandboxServer is the name of its servers.
	sandboxServer = "sandbox"
)

// sandbox is a container of gVisor's runsc in the place of a pod: the host's kernel sees its packets,
// and none of its sockets.
type sandbox struct {
	pod  *lab.Namespace
	node *node
	at   addrs
}

// startSandbox runs the test binary in a sandbox, which takes the pod's addresses and routes for its
// own network stack.
func startSandbox(t *testing.T, c *cluster, at endpoint) *sandbox {
	t.Helper()
	lab.Need(t, "go")
	dir, err := programs.GVisor.Build(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	s := &sandbox{pod: c.podOf(at), node: c.nodes[at.node-1], at: c.addrsOf(at)}
	bundle := t.TempDir()
	state := filepath.Join(bundle, "state")
	t.Cleanup(func() {
		if err := unix.Unmount(filepath.Join(state, "null-netns"), unix.MNT_DETACH); err != nil {
			t.Errorf("unmount what runsc has mounted: %v", err)
		}
	})
	spec, err := json.Marshal(map[string]any{
		"ociVersion": "1.0.0",
		"process":    map[string]any{"args": []string{self, sandboxed, s.at[0].String(), s.at[1].String()}, "cwd": "/"},
		"root":       map[string]any{"path": "/", "readonly": true},
		"mounts":     []any{map[string]any{"destination": "/proc", "type": "proc", "source": "proc"}},
		"linux": map[string]any{"namespaces": []any{
			map[string]any{"type": "pid"}, map[string]any{"type": "ipc"}, map[string]any{"type": "uts"}, map[string]any{"type": "mount"},
			map[string]any{"type": "network", "path": "/proc/self/ns/net"},
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(bundle, "config.json"), spec, 0o600); err != nil {
		t.Fatal(err)
	}
	runsc := s.pod.Start(filepath.Join(dir, "runsc"), "--root", state, "--ignore-cgroups", "--overlay2", "none",
		"run", "--bundle", bundle, "pod")
	lab.Eventually(t, "the sandbox serves", func() bool {
		if runsc.Ended() {
			t.Fatalf("runsc has ended: %v", runsc.Wait())
		}
		_, err := s.request("ready", url.Values{})
		return err == nil
	})
	return s
}

// request has the process in the sandbox do something.
func (s *sandbox) request(what string, values url.Values) (string, error) {
	return s.node.Get(fmt.Sprintf("http://%s/%s?%s", netip.AddrPortFrom(s.at[0], sandboxPort), what, values.Encode()))
}

// ask is [ask] from the sandbox, with a payload of some bytes.
func (s *sandbox) ask(network string, to netip.AddrPort, size int) (got answer, err error) {
	text, err := s.request("ask", url.Values{"network": {network}, "to": {to.String()}, "size": {strconv.Itoa(size)}})
	if err != nil {
		return got, err
	}
	var r sandboxAnswer
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		return got, err
	}
	got = answer{greeting: greeting{name: r.Name, client: r.Client}, self: r.Self}
	switch {
	case r.Refused:
		return got, unix.ECONNREFUSED
	case r.Error != "":
		return got, errors.New(r.Error)
	}
	return got, nil
}

// sandboxAnswer is what the process in the sandbox has learnt, as answer is.
type sandboxAnswer struct {
	Name         string
	Client, Self netip.AddrPort
	Refused      bool
	Error        string
}

// runSandboxed is the process in the sandbox: it serves at the addresses as serve does, and asks what
// it is told to.
func runSandboxed(at []string) error {
	for _, addr := range at {
		where := net.JoinHostPort(addr, strconv.Itoa(backendPort))
		listener, err := net.Listen("tcp", where)
		if err != nil {
			return err
		}
		conn, err := net.ListenPacket("udp", where)
		if err != nil {
			return err
		}
		go serveTCP(listener, sandboxServer)
		go serveUDP(conn, sandboxServer)
	}
	http.HandleFunc("/ready", func(http.ResponseWriter, *http.Request) {})
	http.HandleFunc("/ask", func(w http.ResponseWriter, r *http.Request) {
		var result sandboxAnswer
		got, err := askSandboxed(r.FormValue("network"), r.FormValue("to"), r.FormValue("size"))
		result.Name, result.Client, result.Self = got.name, got.client, got.self
		if err != nil {
			result.Error, result.Refused = err.Error(), errors.Is(err, unix.ECONNREFUSED)
		}
		_ = json.NewEncoder(w).Encode(result) // the test misses it
	})
	return http.ListenAndServe(net.JoinHostPort(at[0], strconv.Itoa(sandboxPort)), nil)
}

// askSandboxed is [sandbox.ask] in the sandbox.
func askSandboxed(network, to, size string) (answer, error) {
	server, err := netip.ParseAddrPort(to)
	if err != nil {
		return answer{}, err
	}
	count, err := strconv.Atoi(size)
	if err != nil {
		return answer{}, err
	}
	payload := make([]byte, count)
	_, _ = rand.NewChaCha8([32]byte{}).Read(payload) // never fails
	return askHere(network, server, string(payload))
}

// TestSandbox: a pod whose sockets the host's kernel does not see reaches every kind of frontend and
// endpoint, itself included, by its packets, whether its device is named or found; and it serves all that
// ask for Services.
func TestSandbox(t *testing.T) {
	t.Parallel()
	tier.Slow(t, "builds gVisor")
	for name, flags := range map[string][]string{
		"sockets of all others": {"--pod-devices", "vethrouted"},
		"sockets of the node":   podFlags,
		"found":                 nil,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, a := serveCluster(t, (*cluster).podServices, flags...)
			s := startSandbox(t, c, local)
			if flags == nil {
				lab.Eventually(t, "the sandbox is found by its packets", func() bool {
					got, err := s.ask("tcp4", netip.AddrPortFrom(clusterIP(3)[0], 80), 7)
					return err == nil && got.client.Addr() == got.self.Addr()
				})
			}
			c.checkSandbox(t, s)
			a.Signal(unix.SIGKILL)
			_ = a.Wait()
			c.checkSandbox(t, s) // without an agent
		})
	}
}

// checkSandbox asks for every Service by every frontend from the sandbox, and for its own from all others.
func (c *cluster) checkSandbox(t *testing.T, s *sandbox) {
	t.Helper()
	for i, set := range podSets {
		for _, network := range networks {
			for _, f := range frontends {
				to := netip.AddrPortFrom(f.address(i+1).of(network), uint16(f.port(i+1)))
				if err := c.checkSandboxAnswer(s, network, to, set.endpoints); err != nil {
					t.Errorf("%s to the %s of %v under %s: %v", network, f.name, set.endpoints, set.policy, err)
				}
			}
		}
	}
	for _, network := range networks {
		for _, f := range frontends {
			to := netip.AddrPortFrom(f.address(1).of(network), uint16(f.port(1)))
			for from, n := range map[string]*lab.Namespace{
				"the client": c.client, "the node": c.nodes[0].Namespace, "another pod": c.nodes[0].bridged, "a pod of another node": c.nodes[1].routed,
			} {
				if got, err := ask(n, network, to, "payload"); err != nil || got.name != sandboxServer {
					t.Errorf("%s from %s to the %s: %v, %v", network, from, f.name, got, err)
				}
			}
		}
	}
}

// checkSandboxAnswer asks from the sandbox with much data and with little.
func (c *cluster) checkSandboxAnswer(s *sandbox, network string, to netip.AddrPort, endpoints []endpoint) error {
	sizes := []int{7, 1 << 20}
	if network[:3] == "udp" {
		sizes[1] = 8000 // in fragments
	}
	for _, size := range sizes {
		got, err := s.ask(network, to, size)
		if len(endpoints) == 0 {
			if !errors.Is(err, unix.ECONNREFUSED) {
				return fmt.Errorf("reached %v, error %v, want it refused", got, err)
			}
			continue
		}
		if err != nil {
			return fmt.Errorf("%d bytes: %w", size, err)
		}
		name, client := endpoints[0].server(), got.self.Addr()
		if endpoints[0] == local {
			name, client = sandboxServer, ownAddr(network, to.Addr())
		}
		if got.name != name || got.client.Addr() != client {
			return fmt.Errorf("reached %v, want %s to have seen %s", got.greeting, name, client)
		}
	}
	return nil
}

package lab

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/tests/cgroup"
)

// The addresses of a [Host].
var (
	// Node4 and Node6 are on the device that leads outside.
	Node4 = netip.MustParseAddr("192.0.2.1")
	Node6 = netip.MustParseAddr("2001:db8::1")
	// Outside4 and Outside6 are those of the other end.
	Outside4 = netip.MustParseAddr("192.0.2.2")
	Outside6 = netip.MustParseAddr("2001:db8::2")
	// Pod4 and Pod6 are those of the first pod, PodGateway4 that of its device on
	// the host.
	Pod4        = netip.MustParseAddr("10.88.0.2")
	Pod6        = netip.MustParseAddr("fd88::2")
	PodGateway4 = netip.MustParseAddr("10.88.0.1")
)

// Uplink is the device that leads outside.
const Uplink = "uplink"

// Backends is how many addresses of each family a host has for backends.
const Backends = 8

// Backend4 returns the host's i-th address for an IPv4 backend.
func Backend4(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 77, 0, byte(i)}) }

// Backend6 returns the host's i-th address for an IPv6 backend.
func Backend6(i int) netip.Addr { return netip.AddrFrom16([16]byte{0: 0xfd, 1: 0x77, 15: byte(i)}) }

// Host is a node with its cgroup and its place for pins: a namespace of its own,
// one outside that it has a device to, and a first pod.
type Host struct {
	*Namespace
	Outside *Namespace
	Pod     *Namespace
	Cgroup  string
	BPFFS   string
	pods    int
}

// NewHost makes a host. It and what runs on it go when the test ends. The test is
// skipped without root, as by all that makes namespaces.
func NewHost(t testing.TB) *Host {
	t.Helper()
	h := &Host{Cgroup: NewCgroup(t), BPFFS: NewBPFFS(t)}
	h.Namespace = newNamespace(t, h.Cgroup)
	h.Outside = newNamespace(t, NewCgroup(t))
	h.connect()
	h.Pod = h.NewPod()
	h.addBackends()
	return h
}

func (h *Host) addBackends() {
	h.t.Helper()
	for i := range Backends {
		h.AddAddr("lo", Backend4(i+1).String()+"/32")
		h.AddAddr("lo", Backend6(i+1).String()+"/128")
	}
}

// connect makes the device to the outside.
func (h *Host) connect() {
	h.t.Helper()
	h.AddDevice(Uplink, h.Outside, "node")
	h.AddAddr(Uplink, Node4.String()+"/24")
	h.AddAddr(Uplink, Node6.String()+"/64")
	h.Outside.AddAddr("node", Outside4.String()+"/24")
	h.Outside.AddAddr("node", Outside6.String()+"/64")
	h.AddDefaultRoute(Outside4.String())
	h.AddDefaultRoute(Outside6.String())
}

// NewNested makes a node in a container of this host, as kind does: a pod whose cgroup is one below the
// host's, with a first pod of its own. It has the same addresses for backends; Node4, Node6 and Outside are
// the host's alone.
func (h *Host) NewNested() *Host {
	h.t.Helper()
	inner := &Host{Cgroup: h.cgroupBelow("nested"), BPFFS: NewBPFFS(h.t)}
	inner.Namespace = h.newPod(inner.Cgroup)
	inner.Pod = inner.NewPod()
	inner.addBackends()
	return inner
}

// cgroupBelow makes a cgroup below the host's, and those in between. They go with the host's.
func (h *Host) cgroupBelow(path string) string {
	h.t.Helper()
	at := h.Cgroup
	for name := range strings.SplitSeq(path, "/") {
		at = filepath.Join(at, name)
		err := os.Mkdir(at, 0o755)
		if errors.Is(err, os.ErrExist) {
			continue
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(at, "cgroup.type"), []byte("threaded"), 0)
		}
		if err != nil {
			h.t.Fatal(err)
		}
	}
	return at
}

// NewPod makes a pod: a namespace in the host's cgroup with a device to the host.
func (h *Host) NewPod() *Namespace { return h.newPod(h.Cgroup) }

// NewPodIn makes a pod whose cgroup is one below the host's.
func (h *Host) NewPodIn(cgroup string) *Namespace {
	h.t.Helper()
	return h.newPod(h.cgroupBelow(cgroup))
}

func (h *Host) newPod(cgroup string) *Namespace {
	h.t.Helper()
	pod, i := newNamespace(h.t, cgroup), h.pods
	h.pods++
	device := fmt.Sprintf("pod%d", i)
	h.AddDevice(device, pod, "eth0")
	for _, subnet := range []string{fmt.Sprintf("10.88.%d.0/24", i), fmt.Sprintf("fd88:0:0:%x::/64", i)} {
		prefix := netip.MustParsePrefix(subnet)
		gateway := prefix.Addr().Next()
		h.AddAddr(device, netip.PrefixFrom(gateway, prefix.Bits()).String())
		pod.AddAddr("eth0", netip.PrefixFrom(gateway.Next(), prefix.Bits()).String())
		pod.AddDefaultRoute(gateway.String())
	}
	return pod
}

// needRoot skips a test of somebody else.
func needRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root to make namespaces and load BPF programs")
	}
}

// NewCgroup makes a cgroup that takes single threads, and returns its path. It goes when the
// test ends, or with the process.
func NewCgroup(t testing.TB) string {
	t.Helper()
	needRoot(t)
	parent := os.Getenv(cgroupEnv)
	if parent == "" {
		t.Fatal("TestMain does not call lab.Main")
	}
	dir, err := os.MkdirTemp(parent, "host-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cgroup.Remove(dir); err != nil {
			t.Error(err)
		}
	})
	if err := os.WriteFile(filepath.Join(dir, "cgroup.type"), []byte("threaded"), 0); err != nil {
		t.Fatal(err)
	}
	return dir
}

// NewBPFFS makes a folder for pins, which goes as that of [NewCgroup].
func NewBPFFS(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp(os.Getenv(bpffsEnv), "host-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// Cookie returns the namespace's cookie, which is what session affinity knows a
// client by.
func (n *Namespace) Cookie() uint64 {
	n.t.Helper()
	var cookie uint64
	n.must("get the namespace's cookie", func() error {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		cookie, err = unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
		return err
	})
	return cookie
}

package kernels_test

import (
	"net"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/beeline-lb/beeline/pkg/datapath"
	"github.com/beeline-lb/beeline/tests/wait"
)

// TestNamespaceWithVeth makes a network namespace that nothing names, with the
// devices the tests build hosts from. The thread that is in it ends with the
// test, and the namespace with the thread.
func TestNamespaceWithVeth(t *testing.T) {
	needRoot(t)
	failed := make(chan error)
	go func() {
		runtime.LockOSThread()
		failed <- addVeth()
	}()
	if err := <-failed; err != nil {
		t.Fatal(err)
	}
}

func addVeth() error {
	ns, err := netns.New()
	if err != nil {
		return err
	}
	defer ns.Close()
	veth := netlink.NewVeth(netlink.LinkAttrs{Name: "one"})
	veth.PeerName = "two"
	if err := netlink.LinkAdd(veth); err != nil {
		return err
	}
	peer, err := netlink.LinkByName("two")
	if err != nil {
		return err
	}
	for _, cidr := range []string{"192.0.2.1/24", "2001:db8::1/64"} {
		addr, err := netlink.ParseAddr(cidr)
		if err != nil {
			return err
		}
		if err := netlink.AddrAdd(peer, addr); err != nil {
			return err
		}
	}
	return netlink.LinkSetUp(peer)
}

// TestLoopback exchanges data over both families of the loopback device.
func TestLoopback(t *testing.T) {
	for _, address := range []string{"127.0.0.1:0", "[::1]:0"} {
		server, err := net.ListenPacket("udp", address)
		if err != nil {
			t.Error(err)
			continue
		}
		defer server.Close()
		client, err := net.Dial("udp", server.LocalAddr().String())
		if err != nil {
			t.Error(err)
			continue
		}
		defer client.Close()
		if _, err := client.Write([]byte("x")); err != nil {
			t.Error(err)
			continue
		}
		if err := server.SetReadDeadline(time.Now().Add(wait.Limit)); err != nil {
			t.Fatal(err)
		}
		if n, _, err := server.ReadFrom(make([]byte, 2)); n != 1 || err != nil {
			t.Errorf("%s: received %d bytes: %v", address, n, err)
		}
	}
}

// TestBPFFS says that programs and maps can be pinned at the usual place.
func TestBPFFS(t *testing.T) {
	needRoot(t)
	dir, err := os.MkdirTemp(datapath.DefaultBPFFS, "beeline-test-")
	if err != nil {
		t.Fatalf("bpffs: %v", err)
	}
	if err := os.Remove(dir); err != nil {
		t.Error(err)
	}
}

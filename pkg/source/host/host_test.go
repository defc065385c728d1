package host

import (
	"os"
	"runtime"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// inNamespace runs the rest of the test on a thread in a network namespace of its own.
func inNamespace(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root to make a network namespace")
	}
	runtime.LockOSThread() // for good: the thread ends with the test
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatal(err)
	}
}

// TestAddresses: the addresses of Services that kube-proxy's mode ipvs puts on its device are not the node's own.
func TestAddresses(t *testing.T) {
	inNamespace(t)
	// A bridge in place of a dummy, which the kernel of the test need not have.
	for name, addrs := range map[string][]string{
		"eth0":       {"192.0.2.1/24", "10.96.0.3/32"},
		"kube-ipvs0": {"10.96.0.1/32", "10.96.0.3/32", "fd96::1/128"},
	} {
		link := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: name}}
		if err := netlink.LinkAdd(link); err != nil {
			t.Fatal(err)
		}
		for _, text := range addrs {
			addr, err := netlink.ParseAddr(text)
			if err != nil {
				t.Fatal(err)
			}
			addr.Flags = unix.IFA_F_NODAD
			if err := netlink.AddrAdd(link, addr); err != nil {
				t.Fatal(err)
			}
		}
	}
	got, err := Addresses()
	if err != nil {
		t.Fatal(err)
	}
	var texts []string
	for _, a := range got {
		texts = append(texts, a.String())
	}
	if want := []string{"10.96.0.3", "192.0.2.1"}; !slices.Equal(texts, want) {
		t.Errorf("addresses are %v, want %v", texts, want)
	}
}

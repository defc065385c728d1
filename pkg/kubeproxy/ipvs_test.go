package kubeproxy

import (
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// inNamespace runs the test in a network namespace of its own.
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

// TestIPVS: the device and the sets of both families go, another's stay. The kernel
// of the test needs neither IPVS nor dummy devices.
func TestIPVS(t *testing.T) {
	inNamespace(t)
	for _, name := range []string{IPVSDevice, "kube-ipvs1"} {
		if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: name}}); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"KUBE-NODE-PORT-TCP", "KUBE-6-NODE-PORT-TCP", "KUBE-NODE-PORT-MINE"} {
		if err := netlink.IpsetCreate(name, "bitmap:port", netlink.IpsetCreateOptions{PortTo: 65535}); err != nil {
			t.Skipf("needs a kernel with ipset: %v", err)
		}
	}
	r, err := Cleanup(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"device kube-ipvs0", "set KUBE-NODE-PORT-TCP", "set KUBE-6-NODE-PORT-TCP"}; !slices.Equal(r.Removed, want) {
		t.Errorf("removed %q, want %q", r.Removed, want)
	}
	if _, err := netlink.LinkByName("kube-ipvs1"); err != nil {
		t.Errorf("the device of another: %v", err)
	}
	if _, err := netlink.IpsetList("KUBE-NODE-PORT-MINE"); err != nil {
		t.Errorf("the set of another: %v", err)
	}
	for _, gone := range []string{"KUBE-NODE-PORT-TCP", "KUBE-6-NODE-PORT-TCP"} {
		if _, err := netlink.IpsetList(gone); !noSet(err) {
			t.Errorf("set %s is still there: %v", gone, err)
		}
	}
}

// TestSetInUse: a set that a rule in a chain uses which others need stays with the chain, and is no error: no other
// attempt would remove it.
func TestSetInUse(t *testing.T) {
	inNamespace(t)
	for _, name := range []string{"KUBE-LOOP-BACK", "KUBE-CLUSTER-IP"} {
		if err := netlink.IpsetCreate(name, "hash:ip,port,ip", netlink.IpsetCreateOptions{}); err != nil {
			t.Skipf("needs a kernel with ipset: %v", err)
		}
	}
	for _, args := range []string{
		"-N KUBE-MARK-MASQ", "-N KUBE-POSTROUTING", "-N CNI-HOSTPORT-SETMARK",
		"-A CNI-HOSTPORT-SETMARK -j KUBE-MARK-MASQ", // as portmap with externalSetMarkChain
		"-A KUBE-POSTROUTING -m set --match-set KUBE-LOOP-BACK dst,dst,src -j MASQUERADE",
	} {
		iptables(t, "iptables-nft", append([]string{"-t", "nat"}, strings.Fields(args)...)...)
	}
	r, err := Cleanup(t.Context())
	if err != nil {
		t.Error(err)
	}
	if want := "set KUBE-LOOP-BACK: a rule uses it"; !slices.Contains(r.Kept, want) {
		t.Errorf("kept %q, want %q", r.Kept, want)
	}
	if !slices.Contains(r.Removed, "set KUBE-CLUSTER-IP") {
		t.Errorf("removed %q", r.Removed)
	}
}

// TestSetNames: names of IPv6 are cut as kube-proxy cuts them.
func TestSetNames(t *testing.T) {
	want := []string{"KUBE-LOAD-BALANCER-SOURCE-CIDR", "KUBE-6-LOAD-BALANCER-SOURCE-CID"}
	if got := ipSetNames(want[0]); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

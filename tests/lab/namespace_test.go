package lab

import (
	"os"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
)

// TestMachineSettings: a namespace and its devices have none of the machine's settings of devices, which
// the kernel gives to new namespaces; it fails without only where the machine has others than the kernel.
func TestMachineSettings(t *testing.T) {
	t.Parallel()
	n := NewNamespace(t)
	veth := netlink.NewVeth(netlink.LinkAttrs{Name: "new"})
	veth.PeerName = "peer"
	n.AddLink(veth)
	for _, device := range []string{"all", "default", "lo", "new"} {
		for _, name := range []string{"rp_filter", "forwarding", "arp_ignore"} {
			var is []byte
			n.must("read "+name, func() (err error) {
				is, err = os.ReadFile("/proc/sys/net/ipv4/conf/" + device + "/" + name)
				return err
			})
			if got := strings.TrimSpace(string(is)); got != "0" {
				t.Errorf("%s of %s is %s, want 0", name, device, got)
			}
		}
	}
}

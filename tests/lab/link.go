package lab

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// NewNamespace makes a network namespace with a cgroup of its own, as of another
// machine.
func NewNamespace(t testing.TB) *Namespace {
	t.Helper()
	return newNamespace(t, NewCgroup(t))
}

// NewNode makes a host without devices, addresses and pods.
func NewNode(t testing.TB) *Host {
	t.Helper()
	h := &Host{Cgroup: NewCgroup(t), BPFFS: NewBPFFS(t)}
	h.Namespace = newNamespace(t, h.Cgroup)
	return h
}

// NewBarePod makes a namespace in the host's cgroup without devices.
func (h *Host) NewBarePod() *Namespace {
	h.t.Helper()
	return newNamespace(h.t, h.Cgroup)
}

// SetSysctl sets a variable below /proc/sys/net, its name with slashes.
func (n *Namespace) SetSysctl(name, value string) {
	n.t.Helper()
	n.must("set "+name, func() error {
		return os.WriteFile(filepath.Join("/proc/sys/net", name), []byte(value), 0)
	})
}

// AddLink makes a device and brings it up.
func (n *Namespace) AddLink(link netlink.Link) {
	n.t.Helper()
	n.must("add device "+link.Attrs().Name, func() error {
		if err := netlink.LinkAdd(link); err != nil {
			return err
		}
		return netlink.LinkSetUp(link)
	})
}

// AddPort makes a device a port of a bridge.
func (n *Namespace) AddPort(bridge, device string) {
	n.t.Helper()
	n.must("add port "+device, func() error {
		master, err := netlink.LinkByName(bridge)
		if err != nil {
			return err
		}
		port, err := netlink.LinkByName(device)
		if err != nil {
			return err
		}
		return netlink.LinkSetMaster(port, master)
	})
}

// AddRoute sends a prefix to a gateway, or to the device where via is the zero
// address.
func (n *Namespace) AddRoute(to netip.Prefix, via netip.Addr, device string) {
	n.t.Helper()
	n.must("add route to "+to.String(), func() error {
		link, err := netlink.LinkByName(device)
		if err != nil {
			return err
		}
		dst, err := netlink.ParseIPNet(to.String())
		if err != nil {
			return err
		}
		route := &netlink.Route{LinkIndex: link.Attrs().Index, Dst: dst, Scope: netlink.SCOPE_LINK}
		if via.IsValid() {
			route.Gw, route.Scope = via.AsSlice(), netlink.SCOPE_UNIVERSE
			route.Flags = int(netlink.FLAG_ONLINK)
		}
		return netlink.RouteAdd(route)
	})
}

// SetChecksumOffload says whether veth devices leave checksums, and with them
// segmentation, to the receiver. Without devices, all of the namespace are set.
func (n *Namespace) SetChecksumOffload(on bool, devices ...string) {
	n.t.Helper()
	n.must("set checksum offload", func() error {
		links, err := netlink.LinkList()
		if err != nil {
			return err
		}
		for _, link := range links {
			name := link.Attrs().Name
			if link.Type() != "veth" || len(devices) > 0 && !slices.Contains(devices, name) {
				continue
			}
			if err := setChecksumOffload(name, on); err != nil {
				return err
			}
		}
		return nil
	})
}

// SetMTU sets how many bytes, from the IP header on, a device's packets may have.
func (n *Namespace) SetMTU(device string, mtu int) {
	n.t.Helper()
	n.must("set the MTU of "+device, func() error {
		link, err := netlink.LinkByName(device)
		if err != nil {
			return err
		}
		return netlink.LinkSetMTU(link, mtu)
	})
}

// PassXDP attaches a program that lets everything pass to veth devices: only so do
// they take what XDP sends at the other end.
func (n *Namespace) PassXDP(devices ...string) {
	n.t.Helper()
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type:         ebpf.XDP,
		AttachType:   ebpf.AttachXDP,
		Flags:        unix.BPF_F_XDP_HAS_FRAGS,
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, xdpPass), asm.Return()},
		License:      "GPL",
	})
	if err != nil {
		n.t.Fatal(err)
	}
	defer program.Close()
	n.must("attach XDP programs", func() error {
		for _, name := range devices {
			device, err := netlink.LinkByName(name)
			if err != nil {
				return err
			}
			if err := netlink.LinkSetXdpFdWithFlags(device, program.FD(), nl.XDP_FLAGS_DRV_MODE); err != nil {
				return err
			}
		}
		return nil
	})
}

// xdpPass is XDP_PASS of linux/bpf.h.
const xdpPass = 2

// ethtoolSetTxChecksum is ETHTOOL_STXCSUM of linux/ethtool.h.
const ethtoolSetTxChecksum = 0x17

func setChecksumOffload(device string, on bool) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	value := struct{ command, data uint32 }{command: ethtoolSetTxChecksum}
	if on {
		value.data = 1
	}
	request := struct {
		name  [unix.IFNAMSIZ]byte
		value unsafe.Pointer
		pad   [16]byte
	}{value: unsafe.Pointer(&value)}
	copy(request.name[:unix.IFNAMSIZ-1], device)
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&request)))
	if errno != 0 {
		return errno
	}
	return nil
}

package datapath_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/bpf"
	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/datapath"
	"github.com/beeline-lb/beeline/pkg/devicemap"
	"github.com/beeline-lb/beeline/tests/lab"
	"github.com/beeline-lb/beeline/tests/tier"
	"github.com/beeline-lb/beeline/tests/wait"
)

func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(wait.Limit); !is(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("it did not happen: %s", what)
		}
	}
}

// addDevice makes a device without a meaning.
func addDevice(t *testing.T, name string) netlink.Link {
	t.Helper()
	bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: name}}
	must(t, netlink.LinkAdd(bridge))
	return bridge
}

// obstruct makes a device one that programs cannot be attached to, until undo is called: of
// tcx links there may be only so many, and a qdisc ingress takes no filters at egress.
func obstruct(t *testing.T, mode datapath.TCMode, l netlink.Link) (undo func()) {
	t.Helper()
	if mode == datapath.TCClsact {
		qdisc := &netlink.Ingress{QdiscAttrs: netlink.QdiscAttrs{
			LinkIndex: l.Attrs().Index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_INGRESS,
		}}
		must(t, netlink.QdiscAdd(qdisc))
		return func() { must(t, netlink.QdiscDel(qdisc)) }
	}
	return lab.FillTCX(t, l.Attrs().Index)
}

func faults(t *testing.T, opts datapath.Options) []devicemap.Fault {
	t.Helper()
	maps, err := bpfmap.Open(datapath.Dir(opts.BPFFS))
	must(t, err)
	defer maps.Close()
	list, err := devicemap.New(maps).Faults()
	must(t, err)
	return list
}

// follow follows devices until the test ends.
func follow(t *testing.T, d *datapath.Datapath) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		d.FollowDevices(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
}

// attached returns the names of the devices that programs run on.
func attached(t *testing.T, opts datapath.Options) string {
	t.Helper()
	var names []string
	for _, d := range devices(t, opts) {
		if d.Mode != "" {
			names = append(names, d.Name)
		}
	}
	return strings.Join(names, " ")
}

// TestOddDeviceKeepsNoOtherFromBeingServed: an agent starts beside a device that cannot be
// attached to, tells of it, and serves it as soon as that is possible.
func TestOddDeviceKeepsNoOtherFromBeingServed(t *testing.T) {
	tier.SameInEveryKernel(t)
	t.Parallel()
	eachMode(t, func(t *testing.T, opts datapath.Options, _ netlink.Link) {
		opts.Devices = []string{uplink, "odd*"}
		odd := addDevice(t, "odd0")
		undo := obstruct(t, opts.TC, odd)
		d := prepare(t, opts)
		t.Cleanup(func() { must(t, d.Close()) })
		must(t, d.Attach(t.Context()))
		if got := attached(t, opts); got != uplink {
			t.Errorf("served: %q, want %s alone", got, uplink)
		}
		list := faults(t, opts)
		if len(list) != 1 || list[0].Name != "odd0" || list[0].Role != "clients" || list[0].Error == "" || list[0].Tries != 1 {
			t.Errorf("faults: %+v", list)
		}
		want := map[datapath.DeviceCount]int{{Role: "clients", Served: true}: 1, {Role: "clients"}: 1}
		if got := d.DeviceCounts(); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("counted: %v, want %v", got, want)
		}
		if err := d.SyncDevices(t.Context()); err == nil || !strings.Contains(err.Error(), "odd0") {
			t.Errorf("the error does not name the device: %v", err)
		}
		follow(t, d)
		eventually(t, "another try", func() bool { return tries(faults(t, opts)) > 2 })
		if f := faults(t, opts)[0]; f.Next.Sub(f.Since) < 2*time.Second {
			t.Errorf("tries do not become fewer: %+v", f)
		}
		undo()
		eventually(t, "the odd device is served", func() bool { return attached(t, opts) == uplink+" odd0" })
		eventually(t, "no fault is told of", func() bool { return len(faults(t, opts)) == 0 })
	})
}

// TestFormerProgramsKeepTheFormerTable: while a device runs programs of the former agent, the
// flows that they write stay known to those of the next one, which has a table of another size.
func TestFormerProgramsKeepTheFormerTable(t *testing.T) {
	tier.SameInEveryKernel(t)
	t.Parallel()
	opts, _ := withUplink(t)
	opts.TC = datapath.TCX
	if !lab.HaveTCX(t) {
		t.Skip("the kernel lacks tcx links: they need Linux 6.6")
	}
	attach(t, opts)
	formerFlow := filepath.Join(datapath.Dir(opts.BPFFS), bpf.TcMapBlFormerFlow)
	kept := func() bool {
		_, err := os.Lstat(formerFlow)
		return err == nil
	}
	// What cannot be opened cannot be replaced, and its program runs on.
	hidden := make(map[string]string)
	for _, pin := range tcxPins(t, opts) {
		hidden[pin] = filepath.Join(opts.BPFFS, filepath.Base(pin))
		must(t, os.Rename(pin, hidden[pin]), os.Mkdir(pin, 0o700))
	}
	opts.Sizes.Flows *= 4
	attach(t, opts)
	if !kept() {
		t.Error("the former flow table is gone, and a device writes to it")
	}
	for pin, at := range hidden {
		must(t, os.Remove(pin), os.Rename(at, pin))
	}
	attach(t, opts)
	if kept() {
		t.Error("the former flow table is kept, and no device writes to it")
	}
}

func tries(list []devicemap.Fault) (n int) {
	for _, f := range list {
		n += f.Tries
	}
	return n
}

// TestErrorIsOfThePass: a sync in which an odd device is not tried, for its time has not come, ends
// without an error.
func TestErrorIsOfThePass(t *testing.T) {
	tier.SameInEveryKernel(t)
	t.Parallel()
	eachMode(t, func(t *testing.T, opts datapath.Options, _ netlink.Link) {
		opts.Devices = []string{uplink, "odd*"}
		defer obstruct(t, opts.TC, addDevice(t, "odd0"))()
		d := prepare(t, opts)
		t.Cleanup(func() { must(t, d.Close()) })
		must(t, d.Attach(t.Context()))
		wait.Until(t, "a sync in which the odd device is not tried ends well", func() bool {
			before := tries(faults(t, opts))
			err := d.SyncChanged(t.Context())
			now := tries(faults(t, opts))
			if (err != nil) != (now > before) {
				t.Fatalf("tried %d times, before %d times; the error is %v", now, before, err)
			}
			return now == before
		})
	})
}

// oddPin puts in the place of a pinned tcx link to a device what is no link, and returns its path.
func oddPin(t *testing.T, opts datapath.Options, ifindex int) string {
	t.Helper()
	path := filepath.Join(datapath.Dir(opts.BPFFS), fmt.Sprintf("link_tcx_%d_egress", ifindex))
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	pinMap(t, path)
	return path
}

// TestDeviceThatCannotBeLeft is tried again until programs are taken off it.
func TestDeviceThatCannotBeLeft(t *testing.T) {
	tier.SameInEveryKernel(t)
	t.Parallel()
	opts, _ := withUplink(t)
	if !lab.HaveTCX(t) {
		t.Skip("the kernel lacks tcx links: they need Linux 6.6")
	}
	opts.Devices = []string{uplink, "odd*"}
	odd := addDevice(t, "odd0")
	d := prepare(t, opts)
	t.Cleanup(func() { must(t, d.Close()) })
	must(t, d.Attach(t.Context()))
	pin := oddPin(t, opts, odd.Attrs().Index)
	t.Cleanup(func() { os.Remove(pin) })
	must(t, netlink.LinkSetName(odd, "even0"))
	follow(t, d)
	eventually(t, "tries to take the programs off", func() bool { return tries(faults(t, opts)) > 2 })
	if list := faults(t, opts); len(list) != 1 || list[0].Name != "odd0" || !strings.Contains(list[0].Error, pin) {
		t.Errorf("faults: %+v, want one of odd0 that names %s", list, pin)
	}
	must(t, os.Remove(pin))
	eventually(t, "no fault is told of", func() bool { return len(faults(t, opts)) == 0 })
	if ids := attachedPrograms(t, odd); len(ids) > 0 {
		t.Errorf("programs %d are left", ids)
	}
	if list := devices(t, opts); len(list) != 1 || list[0].Name != uplink {
		t.Errorf("the entries are %+v, want the uplink's alone", list)
	}
}

// TestChangesAreFollowed: devices come, are renamed and go; addresses, routes and the node's own
// IPs make them be chosen.
func TestChangesAreFollowed(t *testing.T) {
	tier.SameInEveryKernel(t)
	t.Parallel()
	opts, _ := withUplink(t)
	opts.NodePorts = prefixes("172.16.0.0/12")
	d := prepare(t, opts)
	t.Cleanup(func() { must(t, d.Close()) })
	must(t, d.Attach(t.Context()))
	follow(t, d)
	expect := func(when, want string) {
		t.Helper()
		eventually(t, when+": "+want, func() bool { return attached(t, opts) == want })
	}
	second := addDevice(t, "second")
	must(t, netlink.LinkSetUp(second))
	addAddr(t, second, "172.16.7.1/12")
	expect("an address for NodePorts", uplink+" second")
	addr, err := netlink.ParseAddr("172.16.7.1/12")
	must(t, err, netlink.AddrDel(second, addr))
	expect("no such address any more", uplink)
	addAddr(t, second, "198.51.100.1/24")
	route := &netlink.Route{Gw: []byte{198, 51, 100, 254}, Priority: 7}
	must(t, netlink.RouteAdd(route))
	expect("a second default route", uplink+" second")
	must(t, netlink.LinkSetDown(second))
	expect("its device is down", uplink)
	must(t, netlink.LinkSetUp(second), netlink.RouteAdd(route))
	expect("again", uplink+" second")
	must(t, netlink.LinkDel(second))
	expect("its device is gone", uplink)
	third := addDevice(t, "third")
	must(t, netlink.LinkSetUp(third))
	addAddr(t, third, "203.0.113.7/24")
	for range 5 { // the kernel may still have to tell of the device at first
		d.SetNodeAddrs([]netip.Addr{netip.MustParseAddr("203.0.113.7")})
		expect("a node IP", uplink+" third")
		d.SetNodeAddrs([]netip.Addr{netip.MustParseAddr("192.0.2.1")}) // none at all is one that is not known
		expect("another node IP", uplink)
	}
}

// TestDevicesOfNodePortAddresses: each address that a device holds counts, also a secondary one and one
// that is deprecated, which packets of the node's own are not sent from.
func TestDevicesOfNodePortAddresses(t *testing.T) {
	tier.SameInEveryKernel(t)
	t.Parallel()
	opts, _ := withUplink(t)
	opts.NodePorts = prefixes("198.51.100.10/32", "2001:db8::10/128")
	second, third := addDevice(t, "second"), addDevice(t, "third")
	for _, l := range []netlink.Link{second, third, addDevice(t, "fourth")} {
		must(t, netlink.LinkSetUp(l))
	}
	addAddr(t, second, "198.51.100.5/24")
	addAddr(t, second, "198.51.100.10/24")
	deprecated, err := netlink.ParseAddr("2001:db8::10/64")
	must(t, err)
	deprecated.Flags, deprecated.ValidLft, deprecated.PreferedLft = unix.IFA_F_NODAD, 3600, 0
	must(t, netlink.AddrAdd(third, deprecated))
	attach(t, opts)
	if got, want := attached(t, opts), uplink+" second third"; got != want {
		t.Errorf("served: %q, want %q", got, want)
	}
	for _, d := range devices(t, opts) {
		if d.Name == "second" && d.Addr4 != netip.MustParseAddr("198.51.100.5") {
			t.Errorf("packets that leave by it are sent from %s, want its primary address", d.Addr4)
		}
	}
}

// TestFastChangesCostLittle: a pod that makes its device come and go holds nothing up and
// leaves nothing behind.
func TestFastChangesCostLittle(t *testing.T) {
	tier.SameInEveryKernel(t)
	t.Parallel()
	opts, _ := withUplink(t)
	opts.PodDevices = []string{"pod*"}
	d := prepare(t, opts)
	t.Cleanup(func() { must(t, d.Close()) })
	must(t, d.Attach(t.Context()))
	follow(t, d)
	for i := range 300 {
		l := addDevice(t, fmt.Sprintf("pod%d", i%3))
		must(t, netlink.LinkSetUp(l), netlink.LinkDel(l))
	}
	last := addDevice(t, "pod-last")
	eventually(t, "the last device is served", func() bool { return len(attachedPrograms(t, last)) == 2 })
	must(t, netlink.LinkDel(last))
	eventually(t, "only the uplink has pins", func() bool { return len(tcxPins(t, opts)) <= 2 })
	if list := faults(t, opts); len(list) > 0 {
		t.Errorf("faults of devices that are gone: %+v", list)
	}
}

// TestIrrelevantChangesReadNothing: devices of pods that come and go with their routes, lifetimes of addresses, and
// addresses and routes that matter to nothing cost no list of all devices, addresses or routes; an address that may
// matter costs one, and so does a route to pods of another node, also where it replaces one to a pod or is
// replaced by such.
func TestIrrelevantChangesReadNothing(t *testing.T) {
	tier.SameInEveryKernel(t)
	t.Parallel()
	opts, l := withUplink(t)
	opts.PodDevices = []string{"pod*"}
	opts.ClusterCIDRs = prefixes("10.88.0.0/16", "fd88::/64")
	leased, err := netlink.ParseAddr("192.0.2.77/24")
	must(t, err)
	leased.ValidLft, leased.PreferedLft = 3600, 3600
	must(t, netlink.AddrAdd(l, leased))
	d := prepare(t, opts)
	t.Cleanup(func() { must(t, d.Close()) })
	reads := d.CountReads()
	must(t, d.Attach(t.Context()))
	eventually(t, "the kernel has told of the uplink's carrier", func() bool {
		now, err := netlink.LinkByName(uplink)
		must(t, err)
		return now.Attrs().OperState == netlink.OperUp
	})
	follow(t, d)
	served := func(name string) netlink.Link {
		t.Helper()
		pod := addDevice(t, name)
		eventually(t, name+" is served", func() bool { return len(attachedPrograms(t, pod)) == 2 })
		return pod
	}
	served("pod-first")
	before := reads()
	if before.Links == 0 || before.Addrs == 0 || before.Routes == 0 {
		t.Fatalf("at the start was read: %+v", before)
	}
	addr, err := netlink.ParseAddr("fe80::77/64")
	must(t, err)
	gateway := net.IPv4(192, 0, 2, 254)
	route := routeTo(t, "198.51.100.0/24", nil, gateway)
	for i := range 60 { // with each change read before the next: the kernel keeps only so many
		pod := addDevice(t, "pod-next")
		must(t, netlink.LinkSetUp(pod), netlink.RouteAdd(route), netlink.AddrAdd(l, addr))
		of4, of6 := routeTo(t, fmt.Sprintf("10.88.1.%d/32", i), pod, nil), routeTo(t, fmt.Sprintf("fd88::%x/128", i+1), pod, nil)
		must(t, netlink.RouteAdd(of4), netlink.RouteAdd(of6))
		leased.ValidLft, leased.PreferedLft = 7200+i, 3600+i
		must(t, netlink.AddrReplace(l, leased))
		index := pod.Attrs().Index
		eventually(t, "the device has come", func() bool { return d.Knows(index) })
		if i%2 == 0 { // the kernel removes the others with the device
			must(t, netlink.RouteDel(of4), netlink.RouteDel(of6))
		}
		must(t, netlink.RouteDel(route), netlink.AddrDel(l, addr), netlink.LinkDel(pod))
		eventually(t, "the device has gone", func() bool { return !d.Knows(index) })
	}
	pod := served("pod-last")
	if now := reads(); now != before {
		t.Fatalf("by changes that do not matter %+v lists became %+v", before, now)
	}
	addAddr(t, l, "203.0.113.1/24")
	want := datapath.Reads{before.Links, before.Addrs + 1, before.Routes + 1}
	eventually(t, "addresses and routes are read again", func() bool { return reads() == want })

	link := addDevice(t, "link")
	must(t, netlink.LinkSetUp(link), netlink.LinkSetUp(pod))
	toPod, toNode := routeTo(t, "10.88.2.0/24", pod, nil), routeTo(t, "10.88.2.0/24", link, gateway)
	toNode.Flags = int(netlink.FLAG_ONLINK)
	for i, route := range []*netlink.Route{toNode, toPod, toNode} {
		must(t, netlink.RouteReplace(route))
		want.Routes++
		eventually(t, fmt.Sprintf("routes are read again after %v", route), func() bool { return reads() == want })
		eventually(t, fmt.Sprintf("the device with %v has its programs", route), func() bool { return (len(attachedPrograms(t, link)) == 2) == (i != 1) })
	}
}

// routeTo returns a route to a network by a device, a gateway or both.
func routeTo(t *testing.T, network string, device netlink.Link, gateway net.IP) *netlink.Route {
	t.Helper()
	_, dst, err := net.ParseCIDR(network)
	must(t, err)
	r := &netlink.Route{Dst: dst, Gw: gateway}
	if device != nil {
		r.LinkIndex = device.Attrs().Index
	}
	if gateway == nil {
		r.Scope = netlink.SCOPE_LINK
	}
	return r
}

func prefixes(list ...string) (out []netip.Prefix) {
	for _, s := range list {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

// TestUnknownFrames: a device whose frames are not known is a fault, whatever it was chosen for, and what a former
// agent has attached there is taken off.
func TestUnknownFrames(t *testing.T) {
	t.Parallel()
	tier.SameInEveryKernel(t)
	eachMode(t, func(t *testing.T, opts datapath.Options, l netlink.Link) {
		device, err := os.OpenFile("/dev/net/tun", os.O_RDWR, 0)
		if err != nil {
			t.Skip(err)
		}
		defer device.Close()
		request, err := unix.NewIfreq("ib0")
		must(t, err)
		request.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI)
		fd := int(device.Fd())
		must(t, unix.IoctlIfreq(fd, unix.TUNSETIFF, request))
		opts.Devices = []string{uplink, "ib0"}
		d := prepare(t, opts)
		must(t, d.Attach(t.Context()))
		if list := devices(t, opts); len(list) != 2 {
			t.Fatalf("as an Ethernet device: %+v", list)
		}
		must(t, d.Close())
		must(t, unix.IoctlSetInt(fd, unix.TUNSETLINK, unix.ARPHRD_INFINIBAND))
		d = prepare(t, opts)
		defer d.Close()
		must(t, d.Attach(t.Context()))
		ib, err := netlink.LinkByName("ib0")
		must(t, err)
		for range 2 {
			if list := faults(t, opts); len(list) != 1 || list[0].Name != "ib0" || !strings.Contains(list[0].Error, "of type infiniband, are not known") {
				t.Errorf("faults: %+v", list)
			}
			if list := devices(t, opts); len(list) != 1 || list[0].Name != uplink || len(attachedPrograms(t, ib)) > 0 {
				t.Errorf("served: %+v, and at ib0 there are programs: %v", list, attachedPrograms(t, ib))
			}
			if err := d.SyncDevices(t.Context()); err == nil {
				t.Error("a sync has no error")
			}
		}
		must(t, device.Close(), d.SyncDevices(t.Context()))
		if list := faults(t, opts); len(list) > 0 {
			t.Errorf("with the device gone: %+v", list)
		}
	})
}

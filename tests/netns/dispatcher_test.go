package netns_test

import (
	"errors"
	"net/netip"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"

	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/datapath"
	"github.com/beeline-lb/beeline/tests/lab"
	"github.com/beeline-lb/beeline/tests/tier"
)

// Programs of xdp-tools' package, to be run beside ours.
const (
	objects = "/usr/lib/*/bpf/" // Debian's name of the architecture is between
	pass    = "xdp_pass"        // in the object of libxdp's dispatcher
	filter  = "xdpfilt_alw_udp"
)

var service = netip.MustParseAddrPort("10.96.0.1:80")

// modes are those of xdp-loader.
var modes = map[datapath.XDPMode]string{datapath.XDPNative: "native", datapath.XDPGeneric: "skb"}

// newDispatcher makes a host whose uplink runs a program in a dispatcher. The test is
// skipped where that cannot be.
func newDispatcher(t *testing.T, mode datapath.XDPMode) *wires {
	t.Helper()
	lab.Need(t, "xdp-loader")
	h := lab.NewHost(t)
	t.Setenv("LIBXDP_BPFFS", h.BPFFS)
	w := newWires(t, lab.Uplink, h, nil)
	w.load(t, mode, "xdp-dispatcher.o", pass)
	if !slices.Equal(w.components(t), []string{pass}) {
		t.Skip("the kernel runs no program in place of a function")
	}
	return w
}

// serveBeside starts an agent that joins the dispatcher. The test is skipped where libxdp is
// too old for the kernel: then the dispatcher has to be left alone.
func (w *wires) serveBeside(t *testing.T, mode datapath.XDPMode) *lab.Agent {
	t.Helper()
	a := w.serve(t, lab.AgentOptions{Devices: w.devices, XDP: mode})
	why := w.served(t)[0].NoXDP
	if !strings.Contains(why, "libxdp older than 1.5.5") {
		return a
	}
	if have := w.components(t); !slices.Equal(have, []string{pass}) {
		t.Errorf("the dispatcher has %q, want %s alone", have, pass)
	}
	t.Skip(why)
	return nil
}

// load makes xdp-loader load a program of an object.
func (w *wires) load(t *testing.T, mode datapath.XDPMode, object, program string, flags ...string) {
	t.Helper()
	paths, err := filepath.Glob(objects + object)
	if err != nil || len(paths) != 1 {
		t.Fatalf("%s is in %q, %v", object, paths, err)
	}
	w.xdpLoader(t, append(append([]string{"load", "-m", modes[mode], "-n", program}, flags...), lab.Uplink, paths[0])...)
}

// unload makes xdp-loader take one program out of the dispatcher.
func (w *wires) unload(t *testing.T, program string) {
	t.Helper()
	w.xdpLoader(t, "unload", "-i", w.id(t, program), lab.Uplink)
}

func (w *wires) xdpLoader(t *testing.T, args ...string) string {
	t.Helper()
	out, err := w.Output("xdp-loader", args...)
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		t.Fatalf("xdp-loader %q: %v: %s", args, err, exit.Stderr)
	} else if err != nil {
		t.Fatal(err)
	}
	return out
}

// component matches one in what xdp-loader tells of a device: priority, name and id.
var component = regexp.MustCompile(`=>\s+(\d+)\s+(\S+)\s+(\d+)`)

// components returns the names of the dispatcher's programs as xdp-loader sees them.
func (w *wires) components(t *testing.T) []string {
	t.Helper()
	var names []string
	for _, c := range component.FindAllStringSubmatch(w.xdpLoader(t, "status", lab.Uplink), -1) {
		names = append(names, c[2])
	}
	return names
}

// id returns that of one of the dispatcher's programs.
func (w *wires) id(t *testing.T, program string) string {
	t.Helper()
	for _, c := range component.FindAllStringSubmatch(w.xdpLoader(t, "status", lab.Uplink), -1) {
		if c[2] == program {
			return c[3]
		}
	}
	t.Fatalf("%s is not in the dispatcher", program)
	return ""
}

// wantBeside fails the test unless the uplink is served by XDP beside these programs, in
// this order, and a check names each of them as one that runs before Beeline's.
func (w *wires) wantBeside(t *testing.T, mode datapath.XDPMode, others ...string) {
	t.Helper()
	if d := w.served(t)[0]; d.XDP != mode || !slices.Equal(d.XDPBeside, others) {
		t.Errorf("served by XDP %s beside %q (%s), want %s beside %q", d.XDP, d.XDPBeside, d.NoXDP, mode, others)
	}
	if have := w.components(t); !slices.Equal(have, append(others, "bl_xdp")) {
		t.Errorf("the dispatcher has %q, want %q and bl_xdp", have, others)
	}
	var want []datapath.Problem
	for _, name := range others {
		want = append(want, datapath.Problem{Kind: "foreign-before", Text: "XDP program " + name + " runs before Beeline's at device " + lab.Uplink + ", by libxdp's dispatcher"})
	}
	var found []datapath.Problem
	w.read(t, func(maps *bpfmap.Maps) (err error) {
		found, err = datapath.Problems(w.BPFFS, maps, datapath.Options{BPFFS: w.BPFFS, Cgroup: w.Cgroup, Devices: w.devices, XDP: mode})
		return err
	})
	if !slices.Equal(found, want) {
		t.Errorf("found %+v, want %+v", found, want)
	}
}

// loadFilter loads a filter that drops UDP to the Service's port, to be the first program.
func (w *wires) loadFilter(t *testing.T) {
	t.Helper()
	pins := filepath.Join(w.BPFFS, "filter")
	w.load(t, datapath.XDPNative, filter+".o", filter, "-p", pins, "-P", "10")
	ports, err := ebpf.LoadPinnedMap(filepath.Join(pins, "filter_ports"), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer ports.Close()
	const destination, udp = 1 << 1, 1 << 3
	flags := make([]uint64, ebpf.MustPossibleCPU())
	for i := range flags {
		flags[i] = destination | udp
	}
	if err := ports.Put(uint32(service.Port()<<8|service.Port()>>8), flags); err != nil {
		t.Fatal(err)
	}
}

// TestXDPBesideOthers: Beeline shares a device with a filter and another program, in whatever order
// they attach and detach.
func TestXDPBesideOthers(t *testing.T) {
	w := newDispatcher(t, datapath.XDPNative)
	other := w.id(t, pass)
	a := w.serveBeside(t, datapath.XDPNative)
	w.wantBeside(t, datapath.XDPNative, pass)
	w.route(t, netip.PrefixFrom(service.Addr(), 32), w.addr(0, 4, 1))
	backend := netip.AddrPortFrom(w.addr(0, 4, 3), 8080)
	w.check(t, a, "tcp4", service, backend, true)
	w.check(t, a, "udp4", service, backend, true)

	w.loadFilter(t)
	w.wantBeside(t, datapath.XDPNative, filter, pass)
	w.check(t, a, "tcp4", service, backend, true)
	if got, err := w.ask("udp4", service); !errors.Is(err, lab.ErrNothing) {
		t.Errorf("past the filter: reached %q, %v", got, err)
	}
	w.restart(t, a)
	w.wantBeside(t, datapath.XDPNative, filter, pass)
	w.unload(t, filter)
	w.wantBeside(t, datapath.XDPNative, pass)
	var removed []string
	if err := w.Run(func() (err error) { removed, err = datapath.Cleanup(t.Context(), w.BPFFS); return err }); err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(removed, "program of the XDP dispatcher of "+lab.Uplink) {
		t.Errorf("the clean-up tells of no dispatcher: %q", removed)
	}
	if have := w.components(t); !slices.Equal(have, []string{pass}) || w.id(t, pass) != other {
		t.Errorf("after the clean-up the dispatcher has %q, want %s as it was", have, pass)
	}
}

// restart replaces the agent, and stops the new one. XDP has to serve every packet of a
// connection meanwhile.
func (w *wires) restart(t *testing.T, a *lab.Agent) {
	t.Helper()
	s := w.Outside.Socket("tcp4")
	if err := s.Connect(service); err != nil {
		t.Fatal(err)
	}
	talk := func() {
		t.Helper()
		if _, _, err := s.Receive(); err != nil {
			t.Fatal(err)
		}
		if err := s.Send("more"); err != nil {
			t.Fatal(err)
		}
	}
	talk()
	passed := w.Capture()
	former := w.id(t, "bl_xdp")
	restarted := make(chan struct{})
	go func() {
		defer close(restarted)
		a.Stop()
		w.start(lab.AgentOptions{Devices: w.devices, XDP: datapath.XDPNative}).Stop()
	}()
	for going := true; going; {
		select {
		case <-restarted:
			going = false
		default:
			talk()
		}
	}
	if passed.Saw(service.Addr(), "") {
		t.Error("XDP has left a packet to tc during the restart")
	}
	if id := w.id(t, "bl_xdp"); id == former {
		t.Errorf("program %s is still that of the former agent", id)
	}
}

// TestXDPLastOfADispatcher: when Beeline's program is the last in a dispatcher, removing it removes
// the dispatcher; when the device is removed, its pins are.
func TestXDPLastOfADispatcher(t *testing.T) {
	tier.SameInEveryKernel(t)
	for _, c := range []struct {
		name string
		mode datapath.XDPMode
		end  func(*wires, *lab.Agent) error
	}{
		{"off", datapath.XDPGeneric, func(w *wires, a *lab.Agent) error {
			a.Stop()
			w.start(lab.AgentOptions{Devices: w.devices, XDP: datapath.XDPOff})
			return nil
		}},
		{"the device goes", datapath.XDPNative, func(w *wires, a *lab.Agent) error {
			err := w.Run(func() error {
				l, err := netlink.LinkByName(lab.Uplink)
				if err != nil {
					return err
				}
				return netlink.LinkDel(l)
			})
			return errors.Join(err, a.SyncDevices())
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newDispatcher(t, c.mode)
			a := w.serveBeside(t, c.mode)
			w.unload(t, pass)
			w.wantBeside(t, c.mode)
			if err := c.end(w, a); err != nil {
				t.Fatal(err)
			}
			if left, err := filepath.Glob(filepath.Join(w.BPFFS, "xdp", "*")); len(left) > 0 || err != nil {
				t.Errorf("pins are left: %q, %v", left, err)
			}
			if status := w.xdpLoader(t, "status"); strings.Contains(status, "xdp_dispatcher") {
				t.Errorf("the dispatcher is left: %s", status)
			}
		})
	}
}

// TestXDPDispatcherInTheWay: a dispatcher that is attached in another mode stays.
func TestXDPDispatcherInTheWay(t *testing.T) {
	tier.SameInEveryKernel(t)
	w := newDispatcher(t, datapath.XDPNative)
	w.serve(t, lab.AgentOptions{Devices: w.devices, XDP: datapath.XDPGeneric})
	if d := w.served(t)[0]; d.XDP != datapath.XDPOff || !strings.Contains(d.NoXDP, "XDP program xdp_dispatcher") || !strings.Contains(d.NoXDP, "xdp is not native") {
		t.Errorf("served by XDP %s, %q; want a reason that names dispatcher and mode", d.XDP, d.NoXDP)
	}
	if have := w.components(t); !slices.Equal(have, []string{pass}) {
		t.Errorf("the dispatcher has %q, want %s alone", have, pass)
	}
}

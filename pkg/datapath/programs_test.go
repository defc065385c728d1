package datapath_test

import (
	"maps"
	"slices"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/beeline-lb/beeline/pkg/bpf"
	"github.com/beeline-lb/beeline/pkg/datapath"
	"github.com/beeline-lb/beeline/tests/maptest"
	"github.com/beeline-lb/beeline/tests/servicetest"
	"github.com/beeline-lb/beeline/tests/tier"
)

// byName returns the programs for sockets by their names.
func byName(p *bpf.SockPrograms) map[string]*ebpf.Program {
	return map[string]*ebpf.Program{
		bpf.SockProgBlConnect4: p.BlConnect4, bpf.SockProgBlConnect6: p.BlConnect6,
		bpf.SockProgBlGetpeername4: p.BlGetpeername4, bpf.SockProgBlGetpeername6: p.BlGetpeername6,
		bpf.SockProgBlRecvmsg4: p.BlRecvmsg4, bpf.SockProgBlRecvmsg6: p.BlRecvmsg6,
		bpf.SockProgBlRelease:  p.BlRelease,
		bpf.SockProgBlSendmsg4: p.BlSendmsg4, bpf.SockProgBlSendmsg6: p.BlSendmsg6,
		bpf.SockProgBlUdpService: p.BlUdpService,
	}
}

func TestLoadPrograms(t *testing.T) {
	tier.SameInEveryKernel(t)
	t.Parallel()
	m := maptest.New(t, maptest.Small)
	sockets, err := datapath.LoadSockets(m, datapath.Constants{HostNetns: 1})
	must(t, err)
	devices, err := datapath.LoadDevices(m, datapath.Constants{HostNetns: 1})
	must(t, err)
	var got []string
	for _, programs := range []map[string]*ebpf.Program{byName(sockets), devices} {
		for name, p := range programs {
			got = append(got, name)
			must(t, p.Close())
		}
	}
	slices.Sort(got)
	want := []string{
		"bl_backend_ingress", "bl_connect4", "bl_connect6", "bl_egress", "bl_egress_l3", "bl_getpeername4", "bl_getpeername6",
		"bl_ingress", "bl_ingress_l3", "bl_pod_egress", "bl_pod_ingress", "bl_recvmsg4", "bl_recvmsg6", "bl_release", "bl_sendmsg4", "bl_sendmsg6", "bl_tell", "bl_udp_service",
	}
	if !slices.Equal(got, want) {
		t.Errorf("programs %v, want %v", got, want)
	}
	// The maps are still the caller's.
	serve(t, servicetest.Open(t, m), 10)
}

// TestVerifierMargin: the kernel checks each program in an eighth of the instructions that it
// checks at most, with all that a configuration can turn on. Other versions check more of
// them, and how long an agent takes to start goes with it. What the kernel then puts into a
// program of devices or XDP fits into the room that is left for it.
func TestVerifierMargin(t *testing.T) {
	t.Parallel()
	const most = 1_000_000 / 8
	m := maptest.New(t, maptest.Small)
	defer m.Close()
	all := datapath.Constants{HostNetns: 1, HostSocketsOnly: true, LeaveNAT: true, MasqueradeAll: true, ForwardMark: 1, TunnelPort: 6091, TunnelClamp: true}
	sockets, err := datapath.LoadSockets(m, all)
	must(t, err)
	devices, err := datapath.LoadDevices(m, all)
	must(t, err)
	xdp, err := datapath.LoadXDP(m, all)
	must(t, err)
	below, err := datapath.LoadXDPBelow(m, all)
	must(t, err)
	programs := map[string]*ebpf.Program{bpf.XdpProgBlXdp: xdp, bpf.XdpProgBlXdpBelow: below}
	maps.Copy(programs, byName(sockets))
	maps.Copy(programs, devices)
	roomy := make(map[string]*ebpf.ProgramSpec)
	for _, read := range []func() (*ebpf.CollectionSpec, error){bpf.LoadTc, bpf.LoadXdp} {
		spec, err := read()
		must(t, err)
		maps.Copy(roomy, spec.Programs)
	}
	for name, p := range programs {
		defer p.Close()
		info, err := p.Info()
		must(t, err)
		checked, known := info.VerifiedInstructions()
		if !known || checked > most {
			t.Errorf("%s: the kernel has checked %d instructions, want at most %d", name, checked, most)
		}
		t.Logf("%s: %d", name, checked)
		if roomy[name] == nil || tier.Emulated() {
			continue // of sockets, or in a kernel that may do without
		}
		after, err := info.Instructions()
		must(t, err)
		if before := len(roomy[name].Instructions); len(after) > before+before/10+64 {
			t.Errorf("%s: %d instructions have become %d, more than there is room for", name, before, len(after))
		}
	}
}

package datapath

import (
	"errors"
	"fmt"
	"os"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/features"
)

// helpers are the BPF helpers that the programs call, with the kernel that brought them to
// programs of this type.
var helpers = []struct {
	fn    asm.BuiltinFunc
	since string
}{
	{asm.FnGetNetnsCookie, "5.7"},
	{asm.FnSkStorageGet, "5.11"},
	{asm.FnKtimeGetCoarseNs, "5.11"},
	{asm.FnLoop, "5.17"},
	{asm.FnSetRetval, "5.18"},
}

// explain adds to an error of loading or attaching what is the likely cause: a
// right that the process lacks or a feature that the kernel lacks.
func explain(err error) error {
	if errors.Is(err, os.ErrPermission) {
		return fmt.Errorf("%w: %s", err, rights)
	}
	if missing := MissingFeatures(); len(missing) > 0 {
		return errors.Join(append([]error{err}, missing...)...)
	}
	return err
}

// rights are the capabilities that the agent needs.
const rights = "the agent needs CAP_BPF, CAP_NET_ADMIN, CAP_PERFMON and CAP_SYS_ADMIN: run it as root"

// checkRights returns an error when the process may not load programs.
func checkRights() error {
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type:         ebpf.CGroupSockAddr,
		AttachType:   ebpf.AttachCGroupInet4Connect,
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 1), asm.Return()},
		License:      "GPL",
	})
	if errors.Is(err, os.ErrPermission) {
		return errors.New("no right to load BPF programs: " + rights)
	}
	if err != nil {
		return nil // what is wrong shows when the real programs are loaded
	}
	return prog.Close()
}

// MayReadKernel reports whether programs for sockets may read the kernel's memory, which lockdown in
// mode confidentiality forbids, see kernel_lockdown(7).
func MayReadKernel() bool {
	err := features.HaveProgramHelper(ebpf.CGroupSockAddr, asm.FnProbeReadKernel)
	// The library tries bpf_probe_read in its place, and since Linux 6.10 the verifier names that one: not
	// what the library looks for.
	var refused *ebpf.VerifierError
	return !errors.Is(err, ebpf.ErrNotSupported) && !errors.As(err, &refused)
}

// MissingFeatures returns what the kernel lacks that the programs need.
func MissingFeatures() []error {
	var missing []error
	if _, err := kernelTypes().Kernel(); errors.Is(err, os.ErrNotExist) || errors.Is(err, ebpf.ErrNotSupported) {
		missing = append(missing, errors.New("the kernel has no BTF: it needs CONFIG_DEBUG_INFO_BTF"))
	}
	for _, h := range helpers {
		if err := features.HaveProgramHelper(ebpf.CGroupSockAddr, h.fn); errors.Is(err, ebpf.ErrNotSupported) {
			missing = append(missing, fmt.Errorf("the kernel lacks %s for socket programs: it needs Linux %s or newer", h.fn, h.since))
		}
	}
	for _, t := range []ebpf.MapType{ebpf.SkStorage, ebpf.ArrayOfMaps, ebpf.LRUHash, ebpf.LPMTrie} {
		if err := features.HaveMapType(t); errors.Is(err, ebpf.ErrNotSupported) {
			missing = append(missing, fmt.Errorf("the kernel lacks maps of type %s", t))
		}
	}
	return missing
}

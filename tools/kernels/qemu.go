package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/beeline-lb/beeline/tools/kernels/guest"
)

// The processors that kernels see.
const (
	cpuMax = "max"
	// Without CMPXCHG16B: qemu 7.2 now and then spoils the flags when it emulates that,
	// and Linux 6.12 dies of it in kmalloc. Can go with Debian 12, whose qemu it is.
	cpuWithoutCX16 = "max,-cx16"
	// As of small machines, without the atomic instructions that larger ones have.
	cpuWithoutLSE = "cortex-a72"
	// The architecture's own algorithm of pointer authentication takes most of the time that is emulated.
	cpuFastPauth = cpuMax + ",pauth-impdef=on"
)

// kernelArgs make any fault of the kernel end the machine at once, a lockup after 120 s:
// emulated processors wait for real ones.
const kernelArgs = "quiet no_timer_check panic=-1 oops=panic softlockup_panic=1 watchdog_thresh=60 random.trust_cpu=on"

// qemu is the emulator as it is to be run on this machine.
type qemu struct {
	arch  *architecture
	path  string
	accel string
}

// boot is one run of a kernel.
type boot struct {
	cpu       string
	vmlinuz   string
	initramfs string
	events    string    // file that the result line is written to
	console   io.Writer // gets the console as it is written; nil is nobody
	timeout   time.Duration
}

func findQEMU(ctx context.Context, arch *architecture, accel string) (*qemu, error) {
	path, err := exec.LookPath(arch.qemu)
	if err != nil {
		return nil, fmt.Errorf("%w: install the package %s", err, arch.qemuPackage)
	}
	q := &qemu{arch: arch, path: path, accel: accel}
	switch accel {
	case "kvm", "tcg":
	case "auto":
		q.accel = "kvm"
		if !q.kvmUsable(ctx) {
			q.accel = "tcg"
		}
	default:
		return nil, fmt.Errorf("accelerator %q is none of auto, kvm, tcg", accel)
	}
	return q, nil
}

// kvmUsable says whether KVM can run Debian's kernels here. That /dev/kvm can be
// opened is not enough: on a host that is itself a PVM guest KVM runs only kernels
// built for PVM, and qemu aborts where nested KVM is not whole.
func (q *qemu) kvmUsable(ctx context.Context) bool {
	if q.arch.name != runtime.GOARCH {
		return false
	}
	if _, err := os.Stat("/sys/module/kvm_pvm"); err == nil {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	cmd := q.command(ctx, cpuMax, "-S", "-monitor", "stdio")
	cmd.Stdin = strings.NewReader("quit\n")
	return cmd.Run() == nil
}

// command returns a machine to start, with a processor, what every machine has and args.
func (q *qemu) command(ctx context.Context, cpu string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, q.path, slices.Concat([]string{
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-accel", acceleratorArg(q.accel), "-cpu", q.processorArg(cpu), "-smp", "2", "-m", "2048",
	}, q.arch.machine, args)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

// acceleratorArg lets one thread emulate both processors: with a thread each, qemu 7.2 now
// and then goes on with a translation of what the other processor has written over, and a
// kernel that patched a branch (jump labels) stays in its breakpoint.
func acceleratorArg(accel string) string {
	if accel == "tcg" {
		return "tcg,thread=single"
	}
	return accel
}

// processorArg is a processor, without what is slow to emulate.
func (q *qemu) processorArg(cpu string) string {
	if q.accel == "tcg" {
		return cpu + q.arch.emulated
	}
	return cpu
}

// run boots the kernel and waits until the machine is off. The error says why
// the machine could not be run to its end; the report then holds nothing.
func (q *qemu) run(ctx context.Context, b boot) (*report, error) {
	limited, cancel := context.WithTimeout(ctx, b.timeout)
	defer cancel()
	var console, stderr bytes.Buffer
	cmd := q.command(limited, b.cpu, append([]string{
		"-serial", "stdio", "-kernel", b.vmlinuz, "-initrd", b.initramfs,
		"-append", fmt.Sprintf("console=%s %s=%s %s", q.arch.console, guest.ResultEnv, q.arch.results, kernelArgs),
	}, q.arch.resultArgs(b.events)...)...)
	cmd.Stdout = &console
	if b.console != nil {
		cmd.Stdout = io.MultiWriter(&console, b.console)
	}
	cmd.Stderr = &stderr

	err := cmd.Run()
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	r := &report{console: console.Bytes()}
	switch {
	case limited.Err() != nil:
		r.stopped = fmt.Sprintf("stopped at the time limit of %v", b.timeout)
	case err != nil:
		return nil, fmt.Errorf("%s: %w\n%s", q.arch.qemu, err, stderr.String())
	}
	events, err := os.ReadFile(b.events)
	if err != nil {
		return nil, fmt.Errorf("read the results: %w", err)
	}
	return r, r.read(bytes.NewReader(events))
}

// Command kernels runs Beeline's BPF tests in the kernels it supports: it gets
// Debian's kernels from the mirror that this machine's apt uses, packs the test
// binaries, with xdp-tools of the kernel's release, into an initramfs and boots each
// kernel in qemu.
//
//	go run ./tools/kernels [-list] [-all] [-kernel NAME|all] [-- test arguments]
//
// Arguments after -- go to every test binary, as in -- -test.run TestConnect.
// Kernels are kept under .cache/kernels; -update asks the mirror for newer ones.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/beeline-lb/beeline/tests/interrupt"
	"github.com/beeline-lb/beeline/tests/tier"
)

// packages are the test packages that must pass in every kernel, by the machine that runs them: one
// thread emulates a machine, so two take half the time of one. Nearly all of it goes into verifying
// programs.
var packages = [][]string{
	{"./pkg/datapath"},
	{
		"./tests/kernels",
		"./pkg/bpfmap",
		"./pkg/devicemap",
		"./pkg/flowmap",
		"./pkg/nodemap",
		"./pkg/statusmap",
		"./tests/netns",
		"./tests/ipvs",
		"./tests/lockdown", // the last: it holds until the machine is off
	},
}

// options are the command line.
type options struct {
	list    bool
	update  bool
	verbose bool
	all     bool
	kernel  string
	accel   string
	timeout time.Duration
	args    []string
	// packages are as the variable.
	packages [][]string
}

func main() {
	// The kernel kills qemu when the thread that started it ends, so that thread
	// has to be the one that ends last.
	runtime.LockOSThread()
	ctx, stop := signal.NotifyContext(context.Background(), interrupt.Signals()...)
	defer stop()
	if err := run(ctx, parseFlags()); err != nil {
		fmt.Fprintln(os.Stderr, "kernels:", err)
		os.Exit(1)
	}
}

func parseFlags() options {
	o := options{packages: packages}
	flag.BoolVar(&o.list, "list", false, "show the kernels and which are in the cache")
	flag.BoolVar(&o.update, "update", false, "get the newest build of each kernel, not the cached one")
	flag.BoolVar(&o.verbose, "v", false, "show the consoles also while tests pass")
	flag.BoolVar(&o.all, "all", false, "run also tests whose outcome is the same in every kernel, and slow ones")
	flag.StringVar(&o.kernel, "kernel", "all", "kernel to run: "+strings.Join(kernelNames(), ", ")+" or all")
	flag.StringVar(&o.accel, "accel", "auto", "qemu accelerator: kvm, tcg, or auto for kvm where it is usable")
	flag.DurationVar(&o.timeout, "timeout", 45*time.Minute, "time limit for each kernel")
	flag.Parse()
	o.args = flag.Args()
	return o
}

func run(ctx context.Context, o options) error {
	if runtime.GOOS != "linux" || runtime.GOARCH != "amd64" {
		return fmt.Errorf("%s/%s: the kernels are linux/amd64 only; run this on such a machine", runtime.GOOS, runtime.GOARCH)
	}
	chosen, err := chooseKernels(o.kernel)
	if err != nil {
		return err
	}
	root, err := moduleRoot(ctx)
	if err != nil {
		return err
	}
	store := store{dir: filepath.Join(root, ".cache", "kernels")}
	if o.list {
		return store.list(os.Stdout)
	}
	scratch, err := os.MkdirTemp("", "beeline-kernels-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(scratch)

	rooms := make(map[*architecture]*room)
	var failed []error
	for _, k := range chosen {
		if rooms[k.arch] == nil {
			dir := filepath.Join(scratch, k.arch.name)
			if rooms[k.arch], err = newRoom(ctx, root, dir, k.arch, o); err != nil {
				return err
			}
		}
		if err := runKernel(ctx, o, store, rooms[k.arch], k); err != nil {
			failed = append(failed, fmt.Errorf("kernel %s: %w", k.name, err))
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	return errors.Join(failed...)
}

// room has what the machines of an architecture need.
type room struct {
	qemu     *qemu
	machines []*binaries
}

// newRoom finds the emulator and builds what the machines run in dir, which it makes.
func newRoom(ctx context.Context, root, dir string, arch *architecture, o options) (*room, error) {
	qemu, err := findQEMU(ctx, arch, o.accel)
	if err != nil {
		return nil, err
	}
	programs, err := buildPrograms(ctx, root, dir, arch)
	if err != nil {
		return nil, err
	}
	r := &room{qemu: qemu}
	for i, some := range o.packages {
		below := filepath.Join(dir, strconv.Itoa(i))
		if err := os.MkdirAll(below, 0o755); err != nil {
			return nil, err
		}
		b, err := build(ctx, root, below, arch, programs, some)
		if err != nil {
			return nil, err
		}
		r.machines = append(r.machines, b)
	}
	return r, nil
}

// runKernel boots k once for the test binaries of each machine and prints how they ended.
func runKernel(ctx context.Context, o options, store store, room *room, k kernel) error {
	qemu, machines := room.qemu, room.machines
	img, err := store.image(ctx, k, o.update)
	if err != nil {
		return err
	}
	fmt.Printf("kernel %s: %s, accelerator %s\n", k.name, img.release, qemu.accel)
	var group sync.WaitGroup
	ended := make([]*report, len(machines))
	errs := make([]error, len(machines))
	for i, m := range machines {
		group.Go(func() {
			runtime.LockOSThread() // as in main; the thread ends with the machine
			ended[i], errs[i] = runMachine(ctx, o, qemu, k, img, m)
		})
	}
	group.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	all, of := &report{done: true}, []string(nil)
	for i, report := range ended {
		all.add(report)
		of = append(of, machines[i].packages()...)
	}
	all.print(os.Stdout, k.name)
	err = all.verdict(of, hasFilter(o.args))
	if err != nil && !o.verbose {
		os.Stdout.Write(all.console)
	}
	return err
}

// runMachine boots k with the test binaries.
func runMachine(ctx context.Context, o options, qemu *qemu, k kernel, img *image, m *binaries) (*report, error) {
	initramfs := filepath.Join(m.dir, "initramfs-"+k.name)
	defer os.Remove(initramfs)
	if err := packInitramfs(ctx, initramfs, img, m, testArgs(o), testEnv(o)); err != nil {
		return nil, err
	}
	boot := boot{
		cpu:       k.cpu,
		vmlinuz:   img.vmlinuz,
		initramfs: initramfs,
		events:    filepath.Join(m.dir, "events-"+k.name),
		timeout:   o.timeout,
	}
	if o.verbose {
		boot.console = os.Stdout
	}
	return qemu.run(ctx, boot)
}

// testArgs are the arguments of the test binaries: the results are counted from
// verbose output, and a test that hangs shows its stacks before the machine is
// stopped.
func testArgs(o options) []string {
	limit := o.timeout * 8 / 10
	return append([]string{"-test.v", "-test.timeout=" + limit.String()}, o.args...)
}

// testEnv is what the environment of the test binaries has beside that of every guest.
func testEnv(o options) []string {
	env := []string{tier.AgentEnv + "=" + agentPath}
	if o.all {
		env = append(env, tier.AllEnv+"=1")
	}
	return env
}

// hasFilter says that args select tests, so that a package may have none to run.
func hasFilter(args []string) bool {
	for _, arg := range args {
		name, _, _ := strings.Cut(strings.TrimLeft(arg, "-"), "=")
		if name == "test.run" || name == "test.skip" {
			return true
		}
	}
	return false
}

func moduleRoot(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "env", "GOMOD").Output()
	if err != nil {
		return "", fmt.Errorf("go env GOMOD: %w", err)
	}
	path := strings.TrimSpace(string(out))
	if path == "" || path == os.DevNull {
		return "", errors.New("no go.mod here; run this inside the repository")
	}
	return filepath.Dir(path), nil
}

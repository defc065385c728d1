package datapath_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/config"
	"github.com/beeline-lb/beeline/pkg/datapath"
	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/servicemap"
	"github.com/beeline-lb/beeline/pkg/statusmap"
	"github.com/beeline-lb/beeline/pkg/tables"
	"github.com/beeline-lb/beeline/tests/lab"
	"github.com/beeline-lb/beeline/tests/tier"
)

var small = bpfmap.Sizes{
	Frontends: 64, Services: 64, Backends: 64, Slots: 64,
	Affinity: 64, UDPPeers: 64, SourceRanges: 64, Flows: 64, Clients: 64,
}

// place makes a folder for pins and a cgroup, both removed when the test ends.
func place(t *testing.T) datapath.Options {
	t.Helper()
	opts := datapath.Options{BPFFS: lab.NewBPFFS(t), Cgroup: lab.NewCgroup(t), Sizes: small}
	t.Cleanup(func() {
		if _, err := datapath.Cleanup(context.Background(), opts.BPFFS); err != nil {
			t.Error(err)
		}
		if left, err := os.ReadDir(opts.BPFFS); err != nil || len(left) > 0 {
			t.Errorf("left behind: %v, %v", left, err)
		}
	})
	return opts
}

func prepare(t *testing.T, opts datapath.Options) *datapath.Datapath {
	t.Helper()
	d, err := datapath.Prepare(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// attach prepares and attaches as an agent does, and lets the agent end.
func attach(t *testing.T, opts datapath.Options) {
	t.Helper()
	d := prepare(t, opts)
	if err := errors.Join(d.Attach(t.Context()), d.Close()); err != nil {
		t.Fatal(err)
	}
}

func links(t *testing.T, opts datapath.Options) []datapath.Link {
	t.Helper()
	list, err := datapath.Links(opts.BPFFS)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func TestSecondAgentIsRefusedWithThePIDOfTheFirst(t *testing.T) {
	t.Parallel()
	tier.SameInEveryKernel(t)
	opts := place(t)
	first := prepare(t, opts)
	_, err := datapath.Prepare(t.Context(), opts)
	var running *datapath.RunningError
	if !errors.As(err, &running) || running.PID != os.Getpid() {
		t.Errorf("second agent: got %v, want a RunningError with pid %d", err, os.Getpid())
	}
	if pid, up, err := datapath.Running(opts.BPFFS); pid != os.Getpid() || !up || err != nil {
		t.Errorf("Running says %d, %v, %v", pid, up, err)
	}
	if _, err := datapath.Cleanup(t.Context(), opts.BPFFS); !errors.As(err, &running) {
		t.Errorf("clean-up beside an agent: got %v, want a RunningError", err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if _, up, err := datapath.Running(opts.BPFFS); up || err != nil {
		t.Errorf("after the agent ended, Running says %v, %v", up, err)
	}
	attach(t, opts)
}

// TestAgentThatStartsHasNoChanges: changes that an agent had not written when it ended do not wait for the next
// one, which does not know of them until its source tells.
func TestAgentThatStartsHasNoChanges(t *testing.T) {
	t.Parallel()
	tier.SameInEveryKernel(t)
	opts := place(t)
	former := prepare(t, opts)
	statusmap.New(former.Maps()).SetWaiting(time.Now())
	if err := errors.Join(former.Attach(t.Context()), former.Close()); err != nil {
		t.Fatal(err)
	}
	d := prepare(t, opts)
	if since := statusmap.New(d.Maps()).Waiting(); !since.IsZero() {
		t.Errorf("changes wait since %s", since)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestWatchingForAnAgentKeepsNoneFromStarting(t *testing.T) {
	t.Parallel()
	tier.SameInEveryKernel(t)
	opts := place(t)
	attach(t, opts)
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
				_, _, _ = datapath.Running(opts.BPFFS)
			}
		}
	}()
	starts := 3
	if tier.All(t) {
		starts = 20
	}
	for range starts {
		attach(t, opts)
	}
	close(stop)
	<-stopped
}

func TestTakingOverReplacesProgramsAndKeepsLinks(t *testing.T) {
	t.Parallel()
	tier.SameInEveryKernel(t)
	opts := place(t)
	attach(t, opts)
	before := links(t, opts)
	if len(before) != 9 {
		t.Fatalf("%d programs are attached, want 9", len(before))
	}
	attach(t, opts)
	after := links(t, opts)
	for i := range before {
		if before[i].ID != after[i].ID || before[i].ProgramID == after[i].ProgramID {
			t.Errorf("%s: link %d with program %d became link %d with program %d",
				before[i].Program, before[i].ID, before[i].ProgramID, after[i].ID, after[i].ProgramID)
		}
	}
}

func TestAnotherCgroupMovesTheLinks(t *testing.T) {
	t.Parallel()
	tier.SameInEveryKernel(t)
	opts := place(t)
	attach(t, opts)
	before := links(t, opts)[0]
	opts.Cgroup = lab.NewCgroup(t)
	attach(t, opts)
	for _, l := range links(t, opts) {
		if l.Cgroup == before.Cgroup || l.Cgroup == 0 {
			t.Errorf("%s is attached to cgroup %d, want the new one", l.Program, l.Cgroup)
		}
	}
}

// TestLinksStayUntilTheNewCgroupHasThem: where not all can be attached to the new cgroup,
// the former one goes on to be served, and by all programs.
func TestLinksStayUntilTheNewCgroupHasThem(t *testing.T) {
	t.Parallel()
	tier.SameInEveryKernel(t)
	opts := place(t)
	attach(t, opts)
	before := links(t, opts)
	opts.Cgroup = lab.NewCgroup(t)
	keepOut(t, opts.Cgroup)
	d := prepare(t, opts)
	if err := d.Attach(t.Context()); err == nil || errors.Is(err, os.ErrPermission) || !strings.Contains(err.Error(), "is attached there, at cgroup "+opts.Cgroup) {
		t.Errorf("beside a program that allows no other: %v", err)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	if after := links(t, opts); !slices.Equal(after, before) {
		t.Errorf("links %+v\nwere  %+v", after, before)
	}
}

// keepOut attaches a program to a cgroup that allows no other beside it.
func keepOut(t *testing.T, cgroup string) {
	t.Helper()
	folder, err := os.Open(cgroup)
	must(t, err)
	defer folder.Close()
	attachPlainly(t, folder, ebpf.AttachCgroupInet4GetPeername, 0)
}

// attachPlainly attaches a program that changes nothing to a cgroup's hook, without a link.
func attachPlainly(t *testing.T, cgroup *os.File, hook ebpf.AttachType, flags uint32) {
	t.Helper()
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type:         ebpf.CGroupSockAddr,
		AttachType:   hook,
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 1), asm.Return()},
		License:      "GPL",
	})
	must(t, err)
	defer program.Close()
	must(t, link.RawAttachProgram(link.RawAttachProgramOptions{
		Target: int(cgroup.Fd()), Program: program, Attach: hook, Flags: flags,
	}))
}

// TestDetachedByOthers: who detaches the first program of a hook, whoever's it is, as felix does
// at its start, detaches none of ours: they are attached by links.
func TestDetachedByOthers(t *testing.T) {
	t.Parallel()
	opts := place(t)
	cgroup, err := os.Open(opts.Cgroup)
	must(t, err)
	defer cgroup.Close()
	attachPlainly(t, cgroup, ebpf.AttachCGroupInet4Connect, unix.BPF_F_ALLOW_MULTI)
	if err := detachFirst(t, cgroup, ebpf.AttachCGroupInet4Connect); err != nil {
		t.Fatalf("a program without a link: %v", err)
	}
	attach(t, opts)
	before := links(t, opts)
	for _, hook := range []ebpf.AttachType{
		ebpf.AttachCGroupInet4Connect, ebpf.AttachCGroupUDP4Sendmsg, ebpf.AttachCGroupUDP4Recvmsg,
		ebpf.AttachCGroupInet6Connect, ebpf.AttachCGroupUDP6Sendmsg, ebpf.AttachCGroupUDP6Recvmsg,
	} {
		if err := detachFirst(t, cgroup, hook); !errors.Is(err, unix.ENOENT) {
			t.Errorf("%s: %v, want %v", hook, err, unix.ENOENT)
		}
	}
	if after := links(t, opts); !slices.Equal(after, before) {
		t.Errorf("links %+v\nwere  %+v", after, before)
	}
}

// detachFirst detaches the first program of a cgroup's hook.
func detachFirst(t *testing.T, cgroup *os.File, hook ebpf.AttachType) error {
	t.Helper()
	attached, err := link.QueryPrograms(link.QueryOptions{Target: int(cgroup.Fd()), Attach: hook})
	must(t, err)
	if len(attached.Programs) == 0 {
		t.Fatalf("no program at %s", hook)
	}
	program, err := ebpf.NewProgramFromID(attached.Programs[0].ID)
	must(t, err)
	defer program.Close()
	return link.RawDetachProgram(link.RawDetachProgramOptions{Target: int(cgroup.Fd()), Program: program, Attach: hook})
}

func TestRemovedCgroupDoesNotKeepAnAgentFromStarting(t *testing.T) {
	t.Parallel()
	tier.SameInEveryKernel(t)
	opts := place(t)
	gone := opts
	gone.Cgroup = lab.NewCgroup(t)
	attach(t, gone)
	if err := os.Remove(gone.Cgroup); err != nil {
		t.Fatal(err)
	}
	attach(t, opts)
	if l := links(t, opts)[0]; l.Cgroup == 0 {
		t.Error("the links lead to no cgroup")
	}
}

// serve puts count Services into the maps and returns the frontends.
func serve(t *testing.T, services *servicemap.Store, count int) map[tables.FrontendKey]tables.Frontend {
	t.Helper()
	have, err := services.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	tab := tables.Restore(services, have)
	for i := range count {
		svc := &model.Service{
			Name:       model.Name{Namespace: "default", Name: fmt.Sprint("s", i)},
			ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 96, 0, byte(i)})},
			Ports:      []model.ServicePort{{Protocol: model.TCP, Port: 80}},
		}
		if _, err := tab.Apply(tables.Compile(svc, nil, &model.LocalNode{})); err != nil {
			t.Fatal(err)
		}
	}
	have, err = services.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	return have.Frontends
}

func TestMapsOfAnotherSizeKeepTheirEntries(t *testing.T) {
	t.Parallel()
	tier.SameInEveryKernel(t)
	opts := place(t)
	d := prepare(t, opts)
	want := serve(t, d.Services(), 10)
	if err := errors.Join(d.Attach(t.Context()), d.Close()); err != nil {
		t.Fatal(err)
	}
	opts.Sizes.Frontends *= 4
	attach(t, opts)
	maps, err := bpfmap.Open(datapath.Dir(opts.BPFFS))
	if err != nil {
		t.Fatal(err)
	}
	defer maps.Close()
	have, err := servicemap.New(maps).Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	if len(have.Frontends) != len(want) || len(want) != 20 {
		t.Errorf("%d of %d frontends are left", len(have.Frontends), len(want))
	}
	if size := servicemap.New(maps).Limits().Frontends.Size; size != opts.Sizes.Frontends {
		t.Errorf("the map of frontends holds %d, want %d", size, opts.Sizes.Frontends)
	}
}

func TestNothingIsPinnedOrAttachedBeforeAttach(t *testing.T) {
	t.Parallel()
	tier.SameInEveryKernel(t)
	opts := place(t)
	d := prepare(t, opts)
	defer d.Close()
	if pins, err := os.ReadDir(datapath.Dir(opts.BPFFS)); err != nil || len(pins) != 0 {
		t.Errorf("before Attach: pins %v, %v", pins, err)
	}
}

func TestCleanupRemovesEverySchema(t *testing.T) {
	t.Parallel()
	tier.SameInEveryKernel(t)
	opts := place(t)
	attach(t, opts)
	removed, err := datapath.Cleanup(t.Context(), opts.BPFFS)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(removed, func(path string) bool { return strings.HasSuffix(path, "bl_connect4") }) {
		t.Errorf("removed %q, and no link of bl_connect4", removed)
	}
	if left, err := os.ReadDir(opts.BPFFS); err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	if removed, err := datapath.Cleanup(t.Context(), opts.BPFFS); err != nil || len(removed) != 0 {
		t.Errorf("a second clean-up: %v, %v", removed, err)
	}
}

func TestPinsOfAnotherSchemaGoOnceTheNewOnesWork(t *testing.T) {
	t.Parallel()
	tier.SameInEveryKernel(t)
	opts := place(t)
	attach(t, opts)
	other := filepath.Join(filepath.Dir(datapath.Dir(opts.BPFFS)), "v0")
	if err := os.Rename(datapath.Dir(opts.BPFFS), other); err != nil {
		t.Fatal(err)
	}
	d := prepare(t, opts)
	defer d.Close()
	if _, err := os.Stat(other); err != nil {
		t.Errorf("before Attach the other schema's pins are gone: %v", err)
	}
	if err := d.Attach(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(other); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the other schema's pins are still there: %v", err)
	}
}

// TestMapOfAnotherVersion: a pinned map that this version does not know stays for the one that
// does, and the clean-up takes it.
func TestMapOfAnotherVersion(t *testing.T) {
	t.Parallel()
	tier.SameInEveryKernel(t)
	opts := place(t)
	attach(t, opts)
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	path := filepath.Join(datapath.Dir(opts.BPFFS), "bl_of_another")
	if err := m.Pin(path); err != nil {
		t.Fatal(err)
	}
	attach(t, opts)
	if _, err := os.Stat(path); err != nil {
		t.Errorf("after the next agent has attached: %v", err)
	}
	removed, err := datapath.Cleanup(t.Context(), opts.BPFFS)
	if err != nil || !slices.Contains(removed, path) {
		t.Errorf("removed %q, %v, and not %s", removed, err, path)
	}
}

// TestHookOfAnotherVersion: a program at a hook that this version does not have is taken off it, for
// nothing keeps its tables.
func TestHookOfAnotherVersion(t *testing.T) {
	t.Parallel()
	tier.SameInEveryKernel(t)
	opts := place(t)
	attach(t, opts)
	known, err := datapath.Links(opts.BPFFS)
	if err != nil {
		t.Fatal(err)
	}
	program, err := ebpf.NewProgramFromID(ebpf.ProgramID(known[len(known)-1].ProgramID))
	if err != nil {
		t.Fatal(err)
	}
	defer program.Close()
	other, err := link.AttachCgroup(link.CgroupOptions{Path: opts.Cgroup, Attach: ebpf.AttachCGroupInet6Connect, Program: program})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	path := filepath.Join(datapath.Dir(opts.BPFFS), "link_bl_of_another")
	if err := other.Pin(path); err != nil {
		t.Fatal(err)
	}
	attach(t, opts)
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the link is still pinned: %v", err)
	}
	info, err := other.Info()
	if err != nil {
		t.Fatal(err)
	}
	if at := info.Cgroup(); at != nil && at.CgroupId != 0 {
		t.Errorf("the program is still attached to cgroup %d", at.CgroupId)
	}
	if left, err := datapath.Links(opts.BPFFS); err != nil || len(left) != len(known) {
		t.Errorf("links %+v, %v, were %+v", left, err, known)
	}
}

func TestErrorsSayHowToMendThem(t *testing.T) {
	t.Parallel()
	opts := place(t)
	for _, tc := range []struct {
		name   string
		change func(*datapath.Options)
		want   []string
	}{
		{"no cgroup2", func(o *datapath.Options) { o.Cgroup = t.TempDir() }, []string{"not in a cgroup2 hierarchy", "--cgroup-root"}},
		{"no such cgroup", func(o *datapath.Options) { o.Cgroup += "/missing" }, []string{"/missing", "does not exist", "--cgroup-root"}},
		{"no bpffs", func(o *datapath.Options) { o.BPFFS = t.TempDir() }, []string{"not on a BPF file system", "mount -t bpf", "--bpffs"}},
		{"no such folder", func(o *datapath.Options) { o.BPFFS += "/missing" }, []string{"does not exist", "--bpffs"}},
		{"size 0", func(o *datapath.Options) { o.Sizes.Backends = 0 }, []string{"--max-backends", "at least 1"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			o := opts
			tc.change(&o)
			_, err := datapath.Prepare(t.Context(), o)
			if err == nil {
				t.Fatal("got no error")
			}
			for _, part := range tc.want {
				if text := config.ErrorText(err); !strings.Contains(text, part) {
					t.Errorf("error %q does not say %q", text, part)
				}
			}
		})
	}
}

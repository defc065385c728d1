package datapath

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/bpf"
)

// linkPrefix tells the pins of links from those of maps.
const linkPrefix = "link_"

// newSuffix ends the name of a pin until it takes the place of the former one.
const newSuffix = "_new"

// hook is a place in a cgroup that a program is attached to.
type hook struct {
	program string // its name
	of      func(*bpf.SockPrograms) *ebpf.Program
	at      ebpf.AttachType
}

// hooks lists the programs to attach, in this order: a reply is shown right from the
// first request on.
var hooks = []hook{
	{bpf.SockProgBlRelease, func(p *bpf.SockPrograms) *ebpf.Program { return p.BlRelease }, ebpf.AttachCgroupInetSockRelease},
	{bpf.SockProgBlGetpeername4, func(p *bpf.SockPrograms) *ebpf.Program { return p.BlGetpeername4 }, ebpf.AttachCgroupInet4GetPeername},
	{bpf.SockProgBlGetpeername6, func(p *bpf.SockPrograms) *ebpf.Program { return p.BlGetpeername6 }, ebpf.AttachCgroupInet6GetPeername},
	{bpf.SockProgBlRecvmsg4, func(p *bpf.SockPrograms) *ebpf.Program { return p.BlRecvmsg4 }, ebpf.AttachCGroupUDP4Recvmsg},
	{bpf.SockProgBlRecvmsg6, func(p *bpf.SockPrograms) *ebpf.Program { return p.BlRecvmsg6 }, ebpf.AttachCGroupUDP6Recvmsg},
	{bpf.SockProgBlSendmsg4, func(p *bpf.SockPrograms) *ebpf.Program { return p.BlSendmsg4 }, ebpf.AttachCGroupUDP4Sendmsg},
	{bpf.SockProgBlSendmsg6, func(p *bpf.SockPrograms) *ebpf.Program { return p.BlSendmsg6 }, ebpf.AttachCGroupUDP6Sendmsg},
	{bpf.SockProgBlConnect4, func(p *bpf.SockPrograms) *ebpf.Program { return p.BlConnect4 }, ebpf.AttachCGroupInet4Connect},
	{bpf.SockProgBlConnect6, func(p *bpf.SockPrograms) *ebpf.Program { return p.BlConnect6 }, ebpf.AttachCGroupInet6Connect},
	{bpf.SockProgBlSockops, func(p *bpf.SockPrograms) *ebpf.Program { return p.BlSockops }, ebpf.AttachCGroupSockOps},
}

// hooks returns those of the cgroup at which a program is to run, in their order.
func (o *Options) hooks() []hook {
	return slices.DeleteFunc(slices.Clone(hooks), func(h hook) bool { return h.followsTCP() && o.TrafficSampling == 0 && !o.Outliers })
}

// followsTCP reports whether the program looks at what becomes of connections alone: see
// [Constants.TrafficSampling] and [Options].Outliers.
func (h hook) followsTCP() bool { return h.at == ebpf.AttachCGroupSockOps }

func (h hook) pin(dir string) string { return filepath.Join(dir, linkPrefix+h.program) }

// attachHooks makes each program run at its hook, without a moment in which none does. A
// link that is pinned for the same cgroup is updated. Those for another cgroup stay until
// all of the new ones are attached, and after an error.
func attachHooks(dir, cgroup string, wanted []hook, programs *bpf.SockPrograms) error {
	var fresh []hook
	for _, h := range wanted {
		made, err := h.attach(dir, cgroup, h.of(programs))
		if made {
			fresh = append(fresh, h)
		}
		if err != nil {
			errs := []error{fmt.Errorf("attach %s: %w", h.program, err)}
			for _, h := range fresh {
				errs = append(errs, os.Remove(h.pin(dir)+newSuffix))
			}
			return errors.Join(errs...)
		}
	}
	for _, h := range fresh {
		if err := os.Rename(h.pin(dir)+newSuffix, h.pin(dir)); err != nil {
			return fmt.Errorf("attach %s: %w", h.program, err)
		}
	}
	return removeOtherHooks(dir, wanted)
}

// removeOtherHooks removes the pinned links to other hooks, those that this version does not know
// among them, and what an agent that was killed has left beside the wanted ones.
func removeOtherHooks(dir string, wanted []hook) error {
	pins, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, p := range pins {
		path := filepath.Join(dir, p.Name())
		known := slices.ContainsFunc(wanted, func(h hook) bool { return h.pin(dir) == path })
		ofDevice := strings.HasPrefix(p.Name(), tcxPrefix) || strings.HasPrefix(p.Name(), xdpPrefix)
		if known || ofDevice || !strings.HasPrefix(p.Name(), linkPrefix) {
			continue
		}
		if err := removeLink(path); err != nil {
			return err
		}
	}
	return nil
}

// attach makes program run at the hook of a cgroup: it updates the link that is pinned, or
// makes one and pins it beside, to be renamed.
func (h hook) attach(dir, cgroup string, program *ebpf.Program) (made bool, err error) {
	path := h.pin(dir)
	pinned, err := link.LoadPinnedLink(path, nil)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return h.create(path+newSuffix, cgroup, program)
	case err != nil:
		return false, fmt.Errorf("open pin %s: %w", path, err)
	}
	defer pinned.Close()
	same, err := attachedTo(pinned, cgroup)
	if err != nil {
		return false, err
	}
	if same {
		return false, pinned.Update(program)
	}
	return h.create(path+newSuffix, cgroup, program)
}

// removeLink takes a pinned link's program off its hook and removes the pin. Without
// the pin alone the kernel would do it too, but later.
func removeLink(path string) error {
	pinned, err := link.LoadPinnedLink(path, nil)
	if err != nil {
		return fmt.Errorf("open pin %s: %w", path, err)
	}
	defer pinned.Close()
	// Where a cgroup or a device is gone, so are the programs attached to it.
	if err := pinned.Detach(); err != nil && !errors.Is(err, unix.ENOLINK) && !errors.Is(err, ebpf.ErrNotSupported) && !gone(err) {
		return fmt.Errorf("detach %s: %w", path, err)
	}
	return os.Remove(path)
}

// create attaches program to a cgroup and pins the link, in place of what an agent has
// left that was killed before it renamed it.
func (h hook) create(path, cgroup string, program *ebpf.Program) (made bool, err error) {
	l, err := link.AttachCgroup(link.CgroupOptions{Path: cgroup, Attach: h.at, Program: program})
	if err != nil {
		return false, fmt.Errorf("cgroup %s: %w", cgroup, h.refused(cgroup, err))
	}
	defer l.Close()
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return false, err
	}
	if err := l.Pin(path); err != nil {
		return false, err
	}
	return true, nil
}

// attachedTo reports whether the link is one to that cgroup. A link whose cgroup
// has been removed is not.
func attachedTo(l link.Link, cgroup string) (bool, error) {
	info, err := l.Info()
	if err != nil {
		return false, fmt.Errorf("look at the link: %w", err)
	}
	attached := info.Cgroup()
	if attached == nil {
		return false, nil
	}
	id, err := cgroupID(cgroup)
	return attached.CgroupId == id, err
}

// cgroupID returns the kernel's id of a cgroup: the inode number of its folder.
func cgroupID(path string) (uint64, error) {
	var stat unix.Stat_t
	if err := unix.Stat(path, &stat); err != nil {
		return 0, fmt.Errorf("look at cgroup %s: %w", path, err)
	}
	return stat.Ino, nil
}

// Link is a program at work.
type Link struct {
	Program    string // its name
	ProgramID  uint32
	ProgramTag string // digest of its instructions
	ID         uint32
	Attach     string // the hook
	Cgroup     uint64 // id of the cgroup; 0 when it has been removed
}

// Links returns the links that are pinned below the BPF file system, in the order
// in which they are attached.
func Links(bpffs string) ([]Link, error) {
	var list []Link
	for _, h := range hooks {
		l, err := h.describe(Dir(bpffs))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("link of %s: %w", h.program, err)
		}
		list = append(list, l)
	}
	return list, nil
}

func (h hook) describe(dir string) (Link, error) {
	pinned, err := link.LoadPinnedLink(h.pin(dir), nil)
	if err != nil {
		return Link{}, err
	}
	defer pinned.Close()
	info, err := pinned.Info()
	if err != nil {
		return Link{}, err
	}
	l := Link{Program: h.program, ProgramID: uint32(info.Program), ID: uint32(info.ID), Attach: h.at.String()}
	if attached := info.Cgroup(); attached != nil {
		l.Cgroup = attached.CgroupId
	}
	program, err := ebpf.NewProgramFromID(info.Program)
	if err != nil {
		return Link{}, err
	}
	defer program.Close()
	programInfo, err := program.Info()
	if err != nil {
		return Link{}, err
	}
	l.ProgramTag = programInfo.Tag
	return l, nil
}

// refused adds to an error of attaching the program of others that is in the way: one that was attached to the cgroup, or to
// one above it, without BPF_F_ALLOW_MULTI lets no other be there, for which the kernel says "operation not permitted". It is
// then no [os.ErrPermission], which tells of rights that the process lacks.
func (h hook) refused(cgroup string, err error) error {
	if !errors.Is(err, os.ErrPermission) {
		return err
	}
	for path := filepath.Clean(cgroup); checkCgroup2(path) == nil; path = filepath.Dir(path) {
		folder, openErr := os.Open(path)
		if openErr != nil {
			return err
		}
		attached, queryErr := link.QueryPrograms(link.QueryOptions{Target: int(folder.Fd()), Attach: h.at})
		folder.Close()
		if queryErr != nil {
			return err
		}
		for _, p := range attached.Programs {
			if _, linked := p.LinkID(); !linked {
				return fmt.Errorf("%v: program %s (id %d) is attached there, at cgroup %s: if without BPF_F_ALLOW_MULTI, it lets no other be there; "+
					"detach it, or attach it with that flag (bpftool cgroup attach ... multi)", err, programName(uint32(p.ID)), p.ID, path)
			}
		}
	}
	return err
}

package datapath

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// linkPrefix tells the pins of links from those of maps.
const linkPrefix = "link_"

// hook is a place in a cgroup that a program is attached to.
type hook struct {
	program string
	at      ebpf.AttachType
}

// hooks lists what is attached, in this order: a reply is shown right from the
// first request on.
var hooks = []hook{
	{"bl_getpeername4", ebpf.AttachCgroupInet4GetPeername},
	{"bl_getpeername6", ebpf.AttachCgroupInet6GetPeername},
	{"bl_recvmsg4", ebpf.AttachCGroupUDP4Recvmsg},
	{"bl_recvmsg6", ebpf.AttachCGroupUDP6Recvmsg},
	{"bl_sendmsg4", ebpf.AttachCGroupUDP4Sendmsg},
	{"bl_sendmsg6", ebpf.AttachCGroupUDP6Sendmsg},
	{"bl_connect4", ebpf.AttachCGroupInet4Connect},
	{"bl_connect6", ebpf.AttachCGroupInet6Connect},
}

func (h hook) pin(dir string) string { return filepath.Join(dir, linkPrefix+h.program) }

// attach makes program run at the hook. A link that is pinned for the same cgroup
// is updated, so that there is no moment without a program.
func (h hook) attach(dir, cgroup string, program *ebpf.Program) error {
	path := h.pin(dir)
	pinned, err := link.LoadPinnedLink(path, nil)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return h.create(path, cgroup, program)
	case err != nil:
		return fmt.Errorf("open pin %s: %w", path, err)
	}
	defer pinned.Close()
	same, err := attachedTo(pinned, cgroup)
	if err != nil {
		return err
	}
	if same {
		return pinned.Update(program)
	}
	if err := os.Remove(path); err != nil {
		return err
	}
	return h.create(path, cgroup, program)
}

// removeLink takes a pinned link's program off its hook and removes the pin. Without
// the pin alone the kernel would do it too, but later.
func removeLink(path string) error {
	pinned, err := link.LoadPinnedLink(path, nil)
	if err != nil {
		return fmt.Errorf("open pin %s: %w", path, err)
	}
	defer pinned.Close()
	// Where a cgroup or a device is gone, so is what was attached to it.
	if err := pinned.Detach(); err != nil && !errors.Is(err, unix.ENOLINK) && !errors.Is(err, ebpf.ErrNotSupported) && !gone(err) {
		return fmt.Errorf("detach %s: %w", path, err)
	}
	return os.Remove(path)
}

func (h hook) create(path, cgroup string, program *ebpf.Program) error {
	l, err := link.AttachCgroup(link.CgroupOptions{Path: cgroup, Attach: h.at, Program: program})
	if err != nil {
		return fmt.Errorf("cgroup %s: %w", cgroup, err)
	}
	if err := l.Pin(path); err != nil {
		return errors.Join(err, l.Close())
	}
	return l.Close()
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

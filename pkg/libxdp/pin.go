package libxdp

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/flock"
)

// errElsewhere is returned for a dispatcher without pins where they are looked for: its
// maker's LIBXDP_BPFFS may be another folder.
var errElsewhere = ForeignError{"its pins are elsewhere"}

// folder is where the pins of all dispatchers are, each in a folder of its own.
func folder(bpffs string) string { return filepath.Join(bpffs, "xdp") }

// patience is how long to wait for another process that reads or changes pins. libxdp does
// so for moments; one that hangs must not hold up all devices.
const patience = 5 * time.Second

// lock keeps others from reading and writing pins until unlock is called. It waits until
// ctx ends, and no longer than its patience.
func lock(ctx context.Context, bpffs string) (unlock func(), err error) {
	dir, err := os.Open(folder(bpffs))
	if errors.Is(err, os.ErrNotExist) {
		return nil, errElsewhere
	}
	if err != nil {
		return nil, fmt.Errorf("open the folder of pins: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := flock.Exclusive(ctx, dir); err != nil {
		return nil, errors.Join(err, dir.Close())
	}
	return func() { dir.Close() }, nil
}

// pins returns the folder of a dispatcher's pins.
func (d *Dispatcher) pins(program *ebpf.Program) (string, error) {
	info, err := program.Info()
	if err != nil {
		return "", err
	}
	id, _ := info.ID()
	return filepath.Join(folder(d.bpffs), fmt.Sprintf("%s%d", prefix(d.ifindex), id)), nil
}

// prefix begins the names of the folders for a device's dispatchers.
func prefix(ifindex int) string { return fmt.Sprintf("dispatch-%d-", ifindex) }

func programPin(dir string, slot int) string {
	return filepath.Join(dir, functionName(slot)+"-prog")
}

func linkPin(dir string, slot int) string {
	return filepath.Join(dir, functionName(slot)+"-link")
}

// readComponents opens the pins of the programs.
func (d *Dispatcher) readComponents(ctx context.Context, config dispatcherConfig) error {
	unlock, err := lock(ctx, d.bpffs)
	if err != nil {
		return err
	}
	defer unlock()
	dir, err := d.pins(d.program)
	if err != nil {
		return err
	}
	for slot := range int(config.Count) {
		program, err := openPin(programPin(dir, slot))
		if err != nil {
			return err
		}
		c, err := NewComponent(program)
		if err != nil {
			return errors.Join(err, program.Close())
		}
		c.Priority, c.Next, c.Flags = config.Priority[slot], config.Next[slot], config.Flags[slot]
		d.Components = append(d.Components, c)
	}
	return nil
}

// openPin opens a pinned program, which does not know of the pin and so does not move it
// when it is pinned once more.
func openPin(path string) (*ebpf.Program, error) {
	pinned, err := ebpf.LoadPinnedProgram(path, nil)
	if errors.Is(err, os.ErrNotExist) {
		return nil, errElsewhere
	}
	if err != nil {
		return nil, fmt.Errorf("open pin %s: %w", path, err)
	}
	program, err := pinned.Clone()
	return program, errors.Join(err, pinned.Close())
}

// pin puts the programs into a dispatcher and pins them.
func (d *Dispatcher) pin(dispatcher *ebpf.Program, components []Component) error {
	dir, err := d.pins(dispatcher)
	if err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	for slot, c := range components {
		attached, err := link.AttachFreplace(dispatcher, functionName(slot), c.Program)
		if err != nil {
			return fmt.Errorf("put %s into a dispatcher: %w", c.Name, err)
		}
		if err := errors.Join(attached.Pin(linkPin(dir, slot)), attached.Close()); err != nil {
			return err
		}
		program, err := c.Program.Clone()
		if err != nil {
			return err
		}
		if err := errors.Join(program.Pin(programPin(dir, slot)), program.Close()); err != nil {
			return err
		}
	}
	return nil
}

// unpin removes the pins of a dispatcher's programs.
func (d *Dispatcher) unpin(dispatcher *ebpf.Program) error {
	dir, err := d.pins(dispatcher)
	if err != nil {
		return err
	}
	return os.RemoveAll(dir)
}

// Devices returns the ifindexes for which there are pins, in any network namespace.
func Devices(bpffs string) ([]int, error) {
	folders, err := os.ReadDir(folder(bpffs))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	var list []int
	for _, f := range folders {
		if fields := strings.Split(f.Name(), "-"); len(fields) == 3 && fields[0] == "dispatch" {
			if ifindex, err := strconv.Atoi(fields[1]); err == nil {
				list = append(list, ifindex)
			}
		}
	}
	slices.Sort(list)
	return slices.Compact(list), nil
}

// Forget removes the pins of some programs from the dispatchers of a device that is gone.
// The others' are theirs to remove, as is what cannot be read.
func Forget(ctx context.Context, bpffs string, ifindex int, forget func(Component) bool) error {
	unlock, err := lock(ctx, bpffs)
	if err != nil {
		return err
	}
	defer unlock()
	paths, err := filepath.Glob(filepath.Join(folder(bpffs), prefix(ifindex)+"*", "prog*-prog"))
	if err != nil {
		return err
	}
	for _, path := range paths {
		if c, err := pinnedProgram(path); err != nil || !forget(c) {
			continue
		}
		if err := errors.Join(os.Remove(strings.TrimSuffix(path, "-prog")+"-link"), os.Remove(path)); err != nil {
			return err
		}
		if err := os.Remove(filepath.Dir(path)); err != nil && !errors.Is(err, unix.ENOTEMPTY) {
			return err
		}
	}
	return nil
}

// Sweep removes the pins of dispatchers that a device does not run and that have a program for which own
// holds, or none: who changed the device's dispatcher was killed before it ran the new one, or had removed the
// pins of the former. libxdp removes those of all programs (libxdp_clean_references). A folder with a pin that
// cannot be read is somebody else's.
func Sweep(ctx context.Context, bpffs string, ifindex int, own func(Component) bool) error {
	unlock, err := lock(ctx, bpffs)
	if err != nil {
		return err
	}
	defer unlock()
	device, err := netlink.LinkByIndex(ifindex)
	if err != nil {
		return err
	}
	running := fmt.Sprintf("%s%d", prefix(ifindex), runs(device))
	folders, err := filepath.Glob(filepath.Join(folder(bpffs), prefix(ifindex)+"*"))
	if err != nil {
		return err
	}
	for _, dir := range folders {
		if filepath.Base(dir) == running {
			continue
		}
		pinned, err := pinnedPrograms(dir)
		if err != nil || len(pinned) > 0 && !slices.ContainsFunc(pinned, own) {
			continue
		}
		if err := os.RemoveAll(dir); err != nil {
			return err
		}
	}
	return nil
}

// pinnedPrograms returns the programs that are pinned in a dispatcher's folder, by themselves or by a
// link, with their names and IDs.
func pinnedPrograms(dir string) (list []Component, err error) {
	pins, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, p := range pins {
		c, err := pinnedProgram(filepath.Join(dir, p.Name()))
		if err != nil {
			return nil, fmt.Errorf("look at pin %s: %w", p.Name(), err)
		}
		list = append(list, c)
	}
	return list, nil
}

func pinnedProgram(path string) (c Component, err error) {
	var program *ebpf.Program
	if strings.HasSuffix(path, "-link") {
		program, err = programOfLink(path)
	} else {
		program, err = openPin(path)
	}
	if err != nil {
		return c, err
	}
	defer program.Close()
	c, err = NewComponent(program)
	c.Program = nil
	return c, err
}

func programOfLink(path string) (*ebpf.Program, error) {
	pinned, err := link.LoadPinnedLink(path, nil)
	if err != nil {
		return nil, err
	}
	defer pinned.Close()
	info, err := pinned.Info()
	if err != nil {
		return nil, err
	}
	return ebpf.NewProgramFromID(info.Program)
}

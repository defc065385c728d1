package report

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// maxObjects is how many programs, and how many links, are listed.
const maxObjects = 4096

// programsText lists the programs of everybody that the kernel has.
func programsText(ctx context.Context) ([]byte, error) {
	var out bytes.Buffer
	id := ebpf.ProgramID(0)
	for range maxObjects {
		next, err := ebpf.ProgramGetNextID(id)
		if errors.Is(err, os.ErrNotExist) {
			return out.Bytes(), nil
		}
		if err := errors.Join(err, ctx.Err()); err != nil {
			return out.Bytes(), err
		}
		id = next
		programText(&out, id)
	}
	return out.Bytes(), fmt.Errorf("only the first %d programs", maxObjects)
}

// programText writes a line about a program, unless it has just gone.
func programText(out io.Writer, id ebpf.ProgramID) {
	p, err := ebpf.NewProgramFromID(id)
	if err != nil {
		return
	}
	defer p.Close()
	info, err := p.Info()
	if err != nil {
		return
	}
	fmt.Fprintf(out, "%d: %s name %s tag %s", id, info.Type, info.Name, info.Tag)
	if uid, ok := info.CreatedByUID(); ok {
		fmt.Fprintf(out, " uid %d", uid)
	}
	if n, ok := info.VerifiedInstructions(); ok {
		fmt.Fprintf(out, " verified %d", n)
	}
	if memory, ok := info.Memlock(); ok {
		fmt.Fprintf(out, " memlock %d", memory)
	}
	if ids, ok := info.MapIDs(); ok {
		fmt.Fprintf(out, " maps %d", ids)
	}
	fmt.Fprintln(out)
}

// programTitle returns the id and name of a program.
func programTitle(id ebpf.ProgramID) string {
	p, err := ebpf.NewProgramFromID(id)
	if err != nil {
		return fmt.Sprintf("%d (%v)", id, err)
	}
	defer p.Close()
	info, err := p.Info()
	if err != nil {
		return fmt.Sprintf("%d (%v)", id, err)
	}
	return fmt.Sprintf("%d %s", id, info.Name)
}

// linksText lists the links of everybody that the kernel has.
func linksText(ctx context.Context) ([]byte, error) {
	var out bytes.Buffer
	links := new(link.Iterator)
	defer links.Close()
	for n := 0; links.Next(); n++ {
		if n == maxObjects {
			return out.Bytes(), fmt.Errorf("only the first %d links", maxObjects)
		}
		if ctx.Err() != nil {
			return out.Bytes(), ctx.Err()
		}
		if info, err := links.Link.Info(); err == nil { // else it has just gone
			fmt.Fprintf(&out, "%d: %s program %s%s\n", links.ID, linkTypes[info.Type], programTitle(info.Program), place(info))
		}
	}
	return out.Bytes(), links.Err()
}

// linkTypes are the names that bpftool has for those that matter here.
var linkTypes = map[link.Type]string{
	link.RawTracepointType: "raw_tracepoint", link.TracingType: "tracing", link.CgroupType: "cgroup", link.IterType: "iter",
	link.NetNsType: "netns", link.XDPType: "xdp", link.PerfEventType: "perf_event", link.KprobeMultiType: "kprobe_multi",
	link.NetfilterType: "netfilter", link.TCXType: "tcx", link.NetkitType: "netkit",
}

// place says where a link is attached.
func place(info *link.Info) string {
	switch info.Type {
	case link.CgroupType:
		if c := info.Cgroup(); c != nil {
			return fmt.Sprintf(" cgroup %d %s", c.CgroupId, ebpf.AttachType(c.AttachType))
		}
		return " detached"
	case link.TCXType:
		if t := info.TCX(); t != nil {
			return fmt.Sprintf(" ifindex %d %s", t.Ifindex, ebpf.AttachType(t.AttachType))
		}
	case link.XDPType:
		if x := info.XDP(); x != nil {
			return fmt.Sprintf(" ifindex %d", x.Ifindex)
		}
	case link.NetkitType:
		if n := info.Netkit(); n != nil {
			return fmt.Sprintf(" ifindex %d %s", n.Ifindex, ebpf.AttachType(n.AttachType))
		}
	case link.NetNsType:
		if n := info.NetNs(); n != nil {
			return fmt.Sprintf(" netns %d %s", n.NetnsInode, ebpf.AttachType(n.AttachType))
		}
	}
	return ""
}

// cgroupHooks are those that decide about a connection: Beeline's and those of others.
var cgroupHooks = []ebpf.AttachType{
	ebpf.AttachCGroupInet4Connect, ebpf.AttachCGroupInet6Connect, ebpf.AttachCGroupUDP4Sendmsg, ebpf.AttachCGroupUDP6Sendmsg,
	ebpf.AttachCGroupUDP4Recvmsg, ebpf.AttachCGroupUDP6Recvmsg, ebpf.AttachCgroupInet4GetPeername, ebpf.AttachCgroupInet6GetPeername,
	ebpf.AttachCgroupInet4GetSockname, ebpf.AttachCgroupInet6GetSockname, ebpf.AttachCGroupInet4Bind, ebpf.AttachCGroupInet6Bind,
	ebpf.AttachCGroupInet4PostBind, ebpf.AttachCGroupInet6PostBind, ebpf.AttachCGroupInetSockCreate, ebpf.AttachCgroupInetSockRelease,
	ebpf.AttachCGroupInetIngress, ebpf.AttachCGroupInetEgress, ebpf.AttachCGroupSockOps,
}

// cgroupText lists the programs in a cgroup and in those that it is in, in their order.
func cgroupText(path string) ([]byte, error) {
	var out bytes.Buffer
	for ; ; path = filepath.Dir(path) {
		var fs unix.Statfs_t
		err := unix.Statfs(path, &fs)
		if err == nil && fs.Type != unix.CGROUP2_SUPER_MAGIC {
			break
		}
		if err != nil {
			return out.Bytes(), fmt.Errorf("cgroup %s: %w", path, err)
		}
		if err := programsIn(&out, path); err != nil {
			return out.Bytes(), err
		}
	}
	return out.Bytes(), nil
}

// programsIn lists the programs of one cgroup.
func programsIn(out io.Writer, path string) error {
	folder, err := os.Open(path)
	if err != nil {
		return err
	}
	defer folder.Close()
	fmt.Fprintf(out, "cgroup %s\n", path)
	for _, hook := range cgroupHooks {
		attached, err := link.QueryPrograms(link.QueryOptions{Target: int(folder.Fd()), Attach: hook})
		if err != nil {
			fmt.Fprintf(out, "    %s: %v\n", hook, err)
			continue
		}
		for _, p := range attached.Programs {
			fmt.Fprintf(out, "    %s: program %s\n", hook, programTitle(p.ID))
		}
	}
	return nil
}
